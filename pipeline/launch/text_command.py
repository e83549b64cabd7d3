"""`paddlewheel text`: replaces this process by a server of a text model, without writing a service."""

from __future__ import annotations

import re
import sys
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.launch.command_options import TextOptions

if TYPE_CHECKING:
    from pipeline.ops.text_files import TextSettings

_INNER = ("serving_server", "onnx")  # folders that are named after what they hold
TEXT_EXAMPLES = """\
Examples:
  paddlewheel text models/ernie-news
  paddlewheel text models/ner --too-long windows
  paddlewheel text models/xlm-r-xnli --task zero-shot --template "这句话是关于{}的。"
  paddlewheel text models/sentiment --labels negative,positive --http-port 9000
"""


def serve(options: TextOptions) -> None:
    """Replace this process by the server. Raise ConfigError if the model's files leave something open."""
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
    """Return the folder of the model's files. Exports of optimum have a subfolder `onnx`."""
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
    """Print the task, the labels and an example request."""
    from pipeline.api.dag import build_signature
    from pipeline.api.examples import build_example_requests, collect_examples
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
    request = build_example_requests(name, signature, collect_examples(ops, signature))["v1-http"]
    remark = padding_remark(op.model)
    labels = ", ".join(op.model.labels[:8]) + (", ..." if len(op.model.labels) > 8 else "")
    sys.stdout.write(
        f"{name}: {task}, {len(op.model.labels)} classes ({labels}). Once it is ready, ask it:\n\n"
        f"  {request.command(f'localhost:{options.http_port}')}\n\n{remark}\n"
    )
    sys.stdout.flush()


def get_service_name(folder: Path) -> str:
    """Return a service name made from the folder's name."""
    folder = folder.resolve()
    if folder.name in _INNER:
        folder = folder.parent
    name = re.sub(r"[^\w.-]", "-", folder.name)
    return name if re.match(r"[^\W\d]", name) else f"text-{name}"
