"""`paddlewheel export triton`: writes a text service as a model repository that any Triton runs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.errors import ConfigError
from pipeline.launch.command_options import ExportOptions
from pipeline.launch.commands import paddlewheel

if TYPE_CHECKING:
    from pipeline.models.serving_model import ServingModel


def export(options: ExportOptions) -> None:
    """Write the model repository. Raise ConfigError for a service that can't be expressed as one."""
    from pipeline.triton.export.repository import export_repository

    if options.service is not None:
        name, model = _of_service(options.service)
    else:
        name, model = _of_model(options.model)
    name = options.name or name
    written = export_repository(name, model, options.output, onnx=options.onnx, force=options.force)
    sys.stdout.write(
        f"{options.output} has {', '.join(written)}. Ask for {name}; here it is served by\n\n"
        f"  {paddlewheel()} serve --model-repository {options.output}\n"
    )


def _of_service(place: Path) -> tuple[str, ServingModel]:
    """Return the name of a script's service, and the model of its only Op with the Op's description."""
    from pipeline.models.serving_model import choose_version, load_serving_model
    from pipeline.offline.script_service import script_in, service_of_script
    from pipeline.ops.described import DescribedOp

    script = script_in(place)
    if script is None:
        raise ConfigError(f"--service {place} is no script of a service, nor a folder with web_service.py")
    service = service_of_script(script)
    ops, _, config = service.resolve()
    if len(ops) != 1:
        raise ConfigError(f"{script} has the Ops {', '.join(ops)}; a service of one Op can be exported")
    ((name, op),) = ops.items()
    conf = config.op[name].local_model
    if not isinstance(op, DescribedOp) or conf is None:
        raise ConfigError(
            f"{script}: Op {name} is code of its own, which can't be exported; Ops of pipeline.ops.text_ops "
            "can"
        )
    serving_model = load_serving_model(choose_version(Path(conf.model_dir), conf.model_version).directory)
    return service.name, op.described(serving_model)


def _of_model(folder: Path) -> tuple[str, ServingModel]:
    """Return a service name for a model, and the model as its files describe it."""
    from pipeline.launch.text_command import find_model_folder, get_service_name
    from pipeline.models.serving_model import choose_version, load_serving_model
    from pipeline.ops.text_files import TextSettings, described_texts

    serving_model = load_serving_model(choose_version(find_model_folder(folder)).directory)
    return get_service_name(folder), described_texts(serving_model, TextSettings())
