"""`paddlewheel text` and `paddlewheel export triton`: serve or export a text model without writing code."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.errors import ConfigError
from pipeline.launch.command_options import ExportTritonOptions, TextOptions
from pipeline.launch.commands import paddlewheel

if TYPE_CHECKING:
    from pipeline.models.serving_model import ServingModel
    from pipeline.ops.text_files import TextSettings


_INNER = ("serving_server", "onnx")  # folder names that do not name a model
TEXT_EXAMPLES = """\
Examples:
  paddlewheel text models/ernie-news
  paddlewheel text models/ner --too-long windows
  paddlewheel text models/xlm-r-xnli --task zero-shot --template "这句话是关于{}的。"
  paddlewheel text models/sentiment --labels negative,positive --http-port 9000
"""


def serve_texts(options: TextOptions) -> None:
    """Serve a text model: print an example request, then replace this process with the server.

    Raises ConfigError if the task, the labels or the tokenizer is neither in the model's files nor in the
    options.
    """
    from pipeline.launch.new_service import check_name
    from pipeline.ops.text_ops import TextService, service_config

    folder = find_model_folder(options.model)
    name = options.name or get_service_name(options.model)
    check_name(name)
    settings = _settings(options)
    _print_summary(folder, name, settings, options)
    service = TextService(name, settings)
    service.prepare_pipeline_config(
        yml_dict=service_config(
            name,
            folder.absolute(),
            http_port=options.http_port,
            rpc_port=options.rpc_port,
            engine=options.engine,
        )
    )
    service.run_service()


def find_model_folder(model: Path) -> Path:
    """Return the folder with the model's files: `model`, or the subfolder `onnx` that optimum writes."""
    from pipeline.models.serving_model import is_serving_model

    inner = model / "onnx"
    return inner if inner.is_dir() and not is_serving_model(model) else model


def _settings(options: TextOptions) -> TextSettings:
    from pipeline.models.label_names import given_labels
    from pipeline.ops.text_files import TextSettings

    settings = {name: getattr(options, name) for name in (field.name for field in fields(TextSettings))}
    if options.tokenizer:
        settings["tokenizer"] = str(Path(options.tokenizer).absolute())
    for name in ("labels", "candidates"):
        settings[name] = given_labels(settings[name])
    return TextSettings(**settings)


def _print_summary(folder: Path, name: str, settings: TextSettings, options: TextOptions) -> None:
    """Print the task and labels of the text model in `folder`, an example request, and a remark on batches.

    name: the service's name.
    """
    from pipeline.api.dag import build_signature
    from pipeline.api.examples import ExampleRequest, build_example_requests, collect_examples
    from pipeline.api.op import RequestOp
    from pipeline.launch.new_service import padding_remark
    from pipeline.models.serving_model import choose_version, load_serving_model
    from pipeline.ops.text_files import KINDS
    from pipeline.ops.text_ops import TextOp

    op = TextOp(name=name, input_ops=[RequestOp()], **asdict(settings))
    op.set_model_info(load_serving_model(choose_version(folder).directory))
    assert op.model is not None
    (output,) = op.model.description.outputs.values()
    task = next(task for task, kind in KINDS.items() if kind == output.kind)
    ops = {name: op}
    signature = build_signature(ops, op)
    if task == "embeddings":
        body = json.dumps({"model": name, "input": ["text"]}).encode()
        request = ExampleRequest("/v1/embeddings", body)
    else:
        request = build_example_requests(name, signature, collect_examples(ops, signature))["v1-http"]
    remark = padding_remark(op.model)
    labels = ", ".join(op.model.labels[:8]) + (", ..." if len(op.model.labels) > 8 else "")
    classes = "" if task == "embeddings" else f", {len(op.model.labels)} classes ({labels})"
    sys.stdout.write(
        f"{name}: {task}{classes}. Once it is ready, ask it:\n\n"
        f"  {request.command(f'localhost:{options.http_port}')}\n\n{remark}\n"
    )
    sys.stdout.flush()


def get_service_name(folder: Path) -> str:
    """Derive a valid service name from the name of the model's folder."""
    folder = folder.resolve()
    if folder.name in _INNER:
        folder = folder.parent
    name = re.sub(r"[^\w.-]", "-", folder.name)
    return name if re.match(r"[^\W\d]", name) else f"text-{name}"


def export_triton(options: ExportTritonOptions) -> None:
    """Write a text service or text model as a Triton model repository, and print how to serve it.

    Raises ConfigError for a service that can't be exported as a repository.
    """
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
    """Load a service's script; return the service's name, and its model with inputs and outputs described.

    Raises ConfigError unless the service has a single step (Op), whose class is in `pipeline.ops.text_ops`.
    """
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
    """Return a service name for the model in `folder`, and the model with inputs and outputs described."""
    from pipeline.launch.text_command import find_model_folder, get_service_name
    from pipeline.models.serving_model import choose_version, load_serving_model
    from pipeline.ops.text_files import TextSettings, described_texts

    serving_model = load_serving_model(choose_version(find_model_folder(folder)).directory)
    return get_service_name(folder), described_texts(serving_model, TextSettings())
