"""`paddlewheel text`: replaces this process by a server of a text model, without writing a service."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.launch.commands import add_command

if TYPE_CHECKING:
    from pipeline.launch.commands import Commands
    from pipeline.ops.text_files import TextSettings

# As pipeline/ops/text_files.py has them, which is imported when the command runs.
TASKS = ("classification", "multi-label", "labelling", "zero-shot", "embeddings", "reranking")
_INNER = ("serving_server", "onnx")  # folders that are named after what they hold
_EXAMPLES = """\
Examples:
  paddlewheel text models/ernie-news
  paddlewheel text models/ner --too-long windows
  paddlewheel text models/xlm-r-xnli --task zero-shot --template "这句话是关于{}的。"
  paddlewheel text models/sentiment --labels negative,positive --http-port 9000
"""


def serve(options: argparse.Namespace) -> None:
    """Replace this process by the server. Raise ConfigError if the model's files leave something open."""
    from pipeline.launch.new_service import check_name
    from pipeline.ops.text_service import TextService, service_config

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


def _settings(options: argparse.Namespace) -> TextSettings:
    from pipeline.models.label_names import given_labels
    from pipeline.ops.text_files import TextSettings

    tokenizer = str(Path(options.tokenizer).absolute()) if options.tokenizer else ""
    return TextSettings(
        task=options.task,
        labels=given_labels(options.labels),
        tokenizer=tokenizer,
        pair=options.pair,
        too_long=options.too_long,
        stride=options.stride,
        max_tokens=options.max_tokens,
        top_k=options.top_k,
        threshold=options.threshold,
        scheme=options.scheme,
        template=options.template,
        candidates=given_labels(options.candidates),
    )


def _print_summary(folder: Path, name: str, settings: TextSettings, options: argparse.Namespace) -> None:
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


def add_text(commands: Commands, command: Callable[[argparse.Namespace], None]) -> None:
    """Add the command, which `command` runs."""
    parser = add_command(
        commands,
        "text",
        command,
        "serve a model of texts: labels, entities or zero-shot answers over every door",
        "paddlewheel text models/ernie-news",
    )
    parser.epilog = _EXAMPLES
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "model", type=Path, metavar="MODEL", help="folder of a serving model, or with an ONNX model"
    )
    _add_meaning(parser)
    _add_reading(parser)
    parser.add_argument(
        "--name", default="", help="of the service, the first part of its URL (that of MODEL)"
    )
    parser.add_argument(
        "--engine", default="auto", metavar="NAME", help="that runs it (the fastest, once timed)"
    )
    parser.add_argument("--http-port", type=int, default=18082, metavar="PORT", help="HTTP (%(default)s)")
    parser.add_argument("--rpc-port", type=int, default=8088, metavar="PORT", help="gRPC (%(default)s)")


def _add_meaning(parser: argparse.ArgumentParser) -> None:
    """Add the options for the meaning of the model's scores."""
    parser.add_argument("--task", default="", choices=TASKS, help="what it does (as its files say)")
    parser.add_argument(
        "--labels", default="", metavar="A,B|FILE", help="names of the classes, in order (as its files say)"
    )
    parser.add_argument("--top-k", type=_positive, default=0, metavar="N", help="most labels that are told")
    parser.add_argument("--threshold", type=_share, metavar="S", help="least score of a label or an entity")
    parser.add_argument(
        "--scheme",
        default="",
        choices=("auto", "bio", "bioes", "bioul", "none"),
        help="what labels of tokens say of places in an entity (as their names tell)",
    )
    parser.add_argument(
        "--template", default="", metavar="TEXT", help="zero-shot: hypothesis with {} for a label"
    )
    parser.add_argument(
        "--candidates", default="", metavar="A,B|FILE", help="zero-shot: labels of requests without any"
    )


def _add_reading(parser: argparse.ArgumentParser) -> None:
    """Add the options for tokenizing texts."""
    parser.add_argument(
        "--tokenizer", default="", metavar="FILE", help="its tokenizer (the file beside the model)"
    )
    parser.add_argument("--pair", action="store_true", help="each text has a second one, text_pair")
    parser.add_argument(
        "--too-long",
        default="",
        choices=("refuse", "truncate", "windows"),
        help="what becomes of texts beyond the model's length (refuse)",
    )
    parser.add_argument(
        "--stride", type=_positive, default=0, metavar="N", help="tokens from window to window (3/4 of one)"
    )
    parser.add_argument(
        "--max-tokens", type=_positive, default=0, metavar="N", help="of a text (the model's)"
    )


def _positive(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1 up")
    return int(text)


def _share(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 0 to 1")
    return number
