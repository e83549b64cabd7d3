"""The command line of `paddlewheel`: its commands, their options and their exit codes."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline import __version__
from pipeline.errors import ConfigError, ServingError
from pipeline.launch.commands import EXIT_MISTAKE, OneLineParser, add_command
from pipeline.launch.convert_command import CONVERSION_COMMANDS, add_conversion, run_conversion
from pipeline.launch.export_command import add_export, export
from pipeline.launch.offline_options import add_evaluate, add_score
from pipeline.launch.serve_options import add_serve, hint, repository_folder
from pipeline.launch.text_command import add_text
from pipeline.process.start_signals import INTERRUPTED, end_plainly, left_at_once, survive_hangups

if TYPE_CHECKING:
    from pipeline.launch.commands import Commands

EXIT_MISS = 1
PRECISIONS = ("fp32", "bf16", "fp16", "int8")
MAX_CONNECTIONS = 1024  # of the load of `tune`


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command, and return its exit code.

    0: done. 1: the doctor misses something, or there is nothing to stop. 2: the command can't be done. `run`
    returns the exit code of the script.
    """
    argv = sys.argv[1:] if argv is None else argv
    if argv and argv[0] in CONVERSION_COMMANDS:
        return run_conversion(argv)
    parser = _parser()
    options, unknown = parser.parse_known_args(argv)
    if unknown:
        parser.error(f"unrecognized arguments: {' '.join(unknown)}{_meant(options, unknown[0])}")
    try:
        code: int | None = options.command(options)
    except ServingError as exc:
        sys.stderr.write(f"{exc.message}\n")
        return getattr(exc, "exit_code", EXIT_MISTAKE)
    return code or 0


def _meant(options: argparse.Namespace, unknown: str) -> str:
    """Return the hint for a message about an unknown option."""
    return hint(unknown) if options.command is _serve else ""


def _run(options: argparse.Namespace) -> None:
    end_plainly()
    survive_hangups()
    with left_at_once():
        from pipeline.launch.run_script import run_script
    run_script(options.script, options.arguments, config=options.config, show_config=options.print_config)


def _serve(options: argparse.Namespace) -> None:
    end_plainly()
    survive_hangups()
    with left_at_once():
        from pipeline.launch.serve_command import serve
    serve(options)


def _text(options: argparse.Namespace) -> None:
    end_plainly()
    survive_hangups()
    with left_at_once():
        from pipeline.launch.text_command import serve
    serve(options)


def _explain(options: argparse.Namespace) -> int:
    from pipeline.triton.explain import explain_repository

    explanation = explain_repository(options.model_repository)
    sys.stdout.write(f"{explanation.text}\n")
    if options.svg is not None:
        try:
            options.svg.write_text(explanation.drawing, "utf-8")
        except OSError as exc:
            raise ConfigError(f"--svg {options.svg} can't be written: {exc.strerror}") from exc
    return 0 if explanation.complete else EXIT_MISS


def _new(options: argparse.Namespace) -> None:
    from pipeline.launch.new_description import ModelOptions
    from pipeline.launch.new_service import NewApp, write_app

    model_options = ModelOptions(
        options.input,
        options.output,
        options.preset,
        options.resize,
        options.crop,
        options.columns,
        options.labels,
        options.top_k,
    )
    ports = {"http_port": options.http_port, "rpc_port": options.rpc_port}
    app = NewApp.prepare(
        options.directory,
        options.model,
        options.name,
        model_options=model_options,
        copies=options.copy,
        **ports,
    )
    write_app(app)
    sys.stdout.write(app.next_steps(starts=options.run))
    if options.run:
        sys.stdout.flush()
        _run(argparse.Namespace(script=app.script_path, arguments=(), config=None, print_config=False))


def _config(options: argparse.Namespace) -> None:
    from pipeline.config.reference import ENGLISH, config_reference
    from pipeline.config.reference_zh import CHINESE
    from pipeline.models.description import SECTIONS

    sys.stdout.write(config_reference({"en": ENGLISH, "zh": CHINESE}[options.language], SECTIONS))


def _doctor(options: argparse.Namespace) -> int:
    from pipeline.launch.doctor.report import all_needed_is_there, as_json, examine, write_report

    findings = examine(options.config)
    if options.json:
        sys.stdout.write(as_json(findings) + "\n")
    else:
        write_report(findings)
    return 0 if all_needed_is_there(findings) else EXIT_MISS


def _tune(options: argparse.Namespace) -> int:
    from pipeline.launch.tune_command import Options, parse_duration, tune

    for number in (signal.SIGTERM, signal.SIGHUP):  # stop the running candidate too, as Ctrl-C does
        if signal.getsignal(number) == signal.SIG_DFL:  # nohup ignores SIGHUP
            signal.signal(number, signal.default_int_handler)
    tune_options = Options(
        options.service,
        parse_duration("--budget", options.budget),
        parse_duration("--p99", options.p99) * 1e3 if options.p99 else None,
        options.config,
        options.sample,
        options.key,
        options.op,
        options.engine,
        options.precision,
        options.connections,
        options.report,
        options.dry_run,
        options.record,
    )
    try:
        tune(tune_options)
    except KeyboardInterrupt:
        sys.stderr.write("Interrupted: nothing is written\n")
        return INTERRUPTED
    return 0


def _score(options: argparse.Namespace) -> int:
    from pipeline.launch.offline_command import run_score

    try:
        run_score(options)
    except KeyboardInterrupt:
        sys.stderr.write(f"Interrupted: call it again to go on with {options.out}\n")
        return INTERRUPTED
    return 0


def _evaluate(options: argparse.Namespace) -> int:
    from pipeline.launch.offline_command import run_evaluate

    try:
        run_evaluate(options)
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0


def _stop(options: argparse.Namespace) -> None:
    from pipeline.launch.stop_command import choose_services, stop

    stop(choose_services(options.port, options.pid), options.timeout)


def _kill(options: argparse.Namespace) -> None:
    from pipeline.launch.stop_command import choose_services, kill

    kill(choose_services(options.port, options.pid))


def _parser() -> argparse.ArgumentParser:
    parser = OneLineParser(
        prog="paddlewheel",
        description="Serve models over HTTP and gRPC. The same as `python -m pipeline`.",
        epilog="Example: paddlewheel new myservice --model models/mine",
    )
    parser.add_argument("--version", action="version", version=f"paddlewheel {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_run(commands)
    add_text(commands, _text)
    add_serve(commands, _serve)
    _add_explain(commands)
    _add_new(commands)
    _add_config(commands)
    _add_doctor(commands)
    _add_tune(commands)
    add_score(commands, _score)
    add_evaluate(commands, _evaluate)
    add_conversion(commands)
    add_export(commands, export)
    _add_stop(commands)
    _add_kill(commands)
    return parser


def _add_run(commands: Commands) -> None:
    parser = add_command(
        commands,
        "run",
        _run,
        "run a service's script, as `python3 SCRIPT` does",
        "paddlewheel run --config production.yml web_service.py",
    )
    parser.add_argument(
        "--config", type=Path, metavar="PATH", help="in place of the script's own configuration"
    )
    parser.add_argument(
        "--print-config", action="store_true", help="print the resolved configuration and leave"
    )
    parser.add_argument(
        "script",
        type=Path,
        metavar="SCRIPT",
        help="file that calls run_service(), or its folder: web_service.py runs there",
    )
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="...", help="what the script is given")


def _add_explain(commands: Commands) -> None:
    parser = add_command(
        commands,
        "explain",
        _explain,
        "tell what a Triton model repository comes to, and what in it can't be served",
        "paddlewheel explain models",
    )
    parser.add_argument(
        "model_repository", type=repository_folder, nargs="+", metavar="DIR", help="model repository"
    )
    parser.add_argument("--svg", type=Path, metavar="FILE", help="write a drawing of it, too")


def _add_new(commands: Commands) -> None:
    parser = add_command(
        commands,
        "new",
        _new,
        "write a service for a serving model: web_service.py and config.yml",
        "paddlewheel new myservice --model models/mine",
    )
    parser.add_argument(
        "directory", type=Path, metavar="DIR", help="folder to write; it may not hold anything"
    )
    parser.add_argument(
        "--model",
        type=Path,
        required=True,
        metavar="SERVING_DIR",
        help="what `paddlewheel convert serving` wrote, or a folder with an ONNX model alone",
    )
    _add_description(parser)
    parser.add_argument("--name", help="of the service, the first part of its URL (the name of DIR)")
    parser.add_argument(
        "--copy",
        action="store_true",
        help="copy the model to DIR/model, so that DIR can be moved, e.g. to Docker",
    )
    parser.add_argument("--run", action="store_true", help="start the service, too")
    parser.add_argument("--http-port", type=int, default=18082, metavar="PORT", help="HTTP (%(default)s)")
    parser.add_argument("--rpc-port", type=int, default=8088, metavar="PORT", help="gRPC (%(default)s)")


def _add_description(parser: argparse.ArgumentParser) -> None:
    """Add the options that describe a model's inputs and outputs, for its serving.yml."""
    parser.add_argument(
        "--input",
        default="",
        choices=("image", "text", "table", "tensor"),
        help="what clients send (as the model's serving.yml says, else tensors)",
    )
    parser.add_argument(
        "--output",
        default="",
        choices=("classes", "multilabel", "tokens", "entities", "zero-shot", "tensor"),
        help="what they get (labels, where an output has scores of classes)",
    )
    parser.add_argument("--labels", default="", metavar="A,B|FILE", help="names of the classes, in order")
    parser.add_argument(
        "--top-k", type=int, default=0, metavar="N", help="best labels with scores (image: 5)"
    )
    parser.add_argument(
        "--preset",
        default="",
        choices=("torchvision", "paddle", "timm", "plain"),
        help="how images were made inputs in training (torchvision; grey: plain)",
    )
    parser.add_argument(
        "--resize", type=_sides, default=(), metavar="N|HxW", help="the shorter side, or both (as the preset)"
    )
    parser.add_argument(
        "--crop",
        type=_sides,
        default=(),
        metavar="N|HxW",
        help="the middle (as the preset, the model's sides)",
    )
    parser.add_argument(
        "--columns",
        type=_names,
        default=(),
        metavar="A,B",
        help="of a table, in the order of the feed",
    )


def _sides(text: str) -> tuple[int, ...]:
    sides = text.lower().split("x")
    if len(sides) > 2 or not all(side.isdecimal() and int(side) for side in sides):
        raise argparse.ArgumentTypeError(f"{text!r} is no side like 256, nor two like 224x320")
    return tuple(map(int, sides))


def _add_config(commands: Commands) -> None:
    parser = add_command(
        commands,
        "config",
        _config,
        "print every key of config.yml, and of a model's serving.yml, with type, default and meaning",
        "paddlewheel config --language zh",
    )
    parser.add_argument(
        "--language", choices=("en", "zh"), default="en", help="English or Chinese (%(default)s)"
    )


def _add_doctor(commands: Commands) -> None:
    parser = add_command(
        commands,
        "doctor",
        _doctor,
        "check Python, packages, Paddle, CPU, GPU and ports, and make a real prediction",
        "paddlewheel doctor --config production.yml",
    )
    parser.add_argument(
        "--config",
        type=Path,
        metavar="PATH",
        help="whose ports and devices are looked at (config.yml, where there is one)",
    )
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")


def _add_tune(commands: Commands) -> None:
    parser = add_command(
        commands,
        "tune",
        _tune,
        "find a service's fastest settings by real requests, and write them into its config.yml",
        "paddlewheel tune myservice --sample texts.txt --p99 50ms --budget 5m",
    )
    parser.add_argument("service", type=Path, metavar="SERVICE", help="folder of a service, or its script")
    parser.add_argument("--p99", metavar="TIME", help="greatest p99, e.g. 50ms (absent: the frontier's knee)")
    parser.add_argument(
        "--sample", type=Path, metavar="FILE", help=".txt: a text a line; .jsonl: a body a line"
    )
    parser.add_argument("--key", help="key of each text (the first of the service's own example)")
    parser.add_argument("--budget", default="5m", metavar="TIME", help="most time in all (%(default)s)")
    parser.add_argument("--op", metavar="NAME", help="the Op to tune, where several have models")
    parser.add_argument("--engine", type=_names, default=(), metavar="A,B", help="engines (all that can)")
    parser.add_argument(
        "--precision",
        type=_precisions,
        default=(),
        metavar="A,B",
        help="of fp32, bf16, fp16 and int8; answers differ by it (config.yml's alone)",
    )
    parser.add_argument(
        "--connections",
        type=_numbers,
        default=(1, 4, 16, 64),
        metavar="A,B",
        help="of the load, ascending (1,4,16,64)",
    )
    parser.add_argument("--config", type=Path, metavar="PATH", help="in place of config.yml by the script")
    parser.add_argument(
        "--report", type=Path, metavar="PATH", help="PATH.json and PATH.svg (tuned, beside config.yml)"
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="print the change of config.yml, write nothing"
    )
    parser.add_argument(
        "--record",
        type=Path,
        metavar="FILE.jsonl",
        help="tune nothing: write down what the running service answers, 1,000 requests at most, as a sample",
    )


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _precisions(text: str) -> tuple[str, ...]:
    names = _names(text)
    if unknown := [name for name in names if name not in PRECISIONS]:
        raise argparse.ArgumentTypeError(f"{unknown[0]} is none of {', '.join(PRECISIONS)}")
    return names


def _numbers(text: str) -> tuple[int, ...]:
    names = _names(text)
    numbers = sorted({int(name) for name in names if name.isdecimal()})
    if not all(map(str.isdecimal, names)) or not numbers or numbers[0] < 1 or numbers[-1] > MAX_CONNECTIONS:
        raise argparse.ArgumentTypeError(f"from 1 to {MAX_CONNECTIONS}, e.g. 1,4,16,64")
    return tuple(numbers)


def _add_stop(commands: Commands) -> None:
    parser = add_command(
        commands,
        "stop",
        _stop,
        "have this folder's services answer what they have admitted, and end",
        "paddlewheel stop --port 18082",
    )
    _add_choice(parser)
    parser.add_argument(
        "--timeout",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="how long their end is waited for (%(default)g)",
    )


def _add_kill(commands: Commands) -> None:
    parser = add_command(
        commands,
        "kill",
        _kill,
        "end this folder's services and their workers at once; requests under way get no answer",
        "paddlewheel kill --pid 4711",
    )
    _add_choice(parser)


def _add_choice(parser: argparse.ArgumentParser) -> None:
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--port", type=int, help="the service that listens there, wherever it was started")
    choice.add_argument("--pid", type=int, help="the service of this process")
