"""The command line of `paddlewheel`: its commands, their options and their exit codes."""

from __future__ import annotations

import argparse
import runpy
import signal
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from client.options import add_options, parse_options
from pipeline import __version__
from pipeline.errors import ConfigError, ServingError
from pipeline.launch.command_options import (
    AgentOptions,
    ConfigOptions,
    DoctorOptions,
    EvaluateOptions,
    ExplainOptions,
    ExportKubernetesOptions,
    ExportTritonOptions,
    KillOptions,
    NewOptions,
    RayUpOptions,
    RunOptions,
    ScoreOptions,
    StopOptions,
    TextOptions,
    TuneOptions,
    UpgradeOptions,
)
from pipeline.launch.commands import EXIT_MISTAKE, OneLineParser, add_command
from pipeline.launch.serve_options import ServeOptions, add_flags, hint
from pipeline.launch.text_command import TEXT_EXAMPLES, export_triton
from pipeline.launch.tritonserver import start_server
from pipeline.process.start_signals import INTERRUPTED, end_plainly, left_at_once, survive_hangups

if TYPE_CHECKING:
    from pipeline.launch.commands import Commands


CONVERSION_COMMANDS = {"convert": "convert", "convert-env": "convert.steps.new_environment"}
"""The module of each command, which parses its own arguments."""


def run_conversion(argv: Sequence[str]) -> int:
    """Run `paddlewheel convert` or `convert-env` by its module's name, and return the exit code.

    argv: the command and its arguments. The module is run by name and not imported, because serving does not
    need the converter.
    """
    command, *arguments = argv
    sys.argv = [f"paddlewheel {command}", *arguments]
    try:
        runpy.run_module(CONVERSION_COMMANDS[command], run_name="__main__", alter_sys=True)
    except SystemExit as exc:
        if not isinstance(exc.code, int):
            raise
        return exc.code
    return 0


def add_conversion(commands: Commands) -> None:
    """List the commands `convert` and `convert-env` in the output of `paddlewheel --help`.

    The commands are only listed: `run_conversion` runs them, and their modules parse the arguments.
    """
    add_command(
        commands,
        "convert",
        run_conversion,
        "convert a model into a serving model, with its outputs compared at each step",
        "paddlewheel convert all ./bert-base-chinese models/mine",
    )
    add_command(
        commands,
        "convert-env",
        run_conversion,
        "make the environment with the converters, which conflict with the packages of a service",
        "paddlewheel convert-env ~/convert-env --torch",
    )


EXIT_MISS = 1


def main(argv: Sequence[str] | None = None) -> int:
    """Run a `paddlewheel` command, and return the exit code of the process.

    argv: the command and its arguments, by default sys.argv. Exit codes: 0 for success. 1 if `doctor` found
    something missing, no service could be stopped, a row got no answer, or an upgrade kept the old version. 2
    if the command can't be carried out. `run` returns the exit code of the script.
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
    """Return "; did you mean --FLAG?" for an unknown flag of `paddlewheel serve`, else an empty text."""
    return hint(unknown) if options.command == _SERVE.call else ""


def _run_service_script(options: RunOptions) -> None:
    end_plainly()
    survive_hangups()
    with left_at_once():
        from pipeline.launch.run_script import run_script
    run_script(options.script, options.arguments, config=options.config, show_config=options.print_config)


def _serve_texts(options: TextOptions) -> None:
    end_plainly()
    survive_hangups()
    with left_at_once():
        from pipeline.launch.text_command import serve_texts
    serve_texts(options)


def _explain(options: ExplainOptions) -> int:
    from pipeline.triton.explain import explain_repository

    explanation = explain_repository(options.model_repository)
    sys.stdout.write(f"{explanation.text}\n")
    if options.svg is not None:
        try:
            options.svg.write_text(explanation.drawing, "utf-8")
        except OSError as exc:
            raise ConfigError(f"--svg {options.svg} can't be written: {exc.strerror}") from exc
    return 0 if explanation.complete else EXIT_MISS


def _new(options: NewOptions) -> None:
    from pipeline.launch.new_service import NewApp, write_app

    app = NewApp.prepare(
        options.directory,
        options.model,
        options.name,
        model_options=options.model_options,
        copies=options.copy,
        http_port=options.http_port,
        rpc_port=options.rpc_port,
    )
    write_app(app)
    sys.stdout.write(app.next_steps(starts=options.run))
    if options.run:
        sys.stdout.flush()
        _run_service_script(RunOptions(script=app.script_path, arguments=()))


def _config(options: ConfigOptions) -> None:
    from pipeline.config.reference import ENGLISH, config_reference
    from pipeline.config.reference_zh import CHINESE
    from pipeline.models.description import SECTIONS

    sys.stdout.write(config_reference({"en": ENGLISH, "zh": CHINESE}[options.language], SECTIONS))


def _doctor(options: DoctorOptions) -> int:
    from pipeline.launch.doctor.report import all_needed_is_there, as_json, examine, write_report

    findings = examine(options.config)
    if options.json:
        sys.stdout.write(as_json(findings) + "\n")
    else:
        write_report(findings)
    return 0 if all_needed_is_there(findings) else EXIT_MISS


def _tune(options: TuneOptions) -> int:
    from pipeline.launch.tune_command import tune
    from pipeline.launch.tune_repository import tune_model

    for number in (signal.SIGTERM, signal.SIGHUP):  # stop the running candidate too, as Ctrl-C does
        if signal.getsignal(number) == signal.SIG_DFL:  # nohup ignores SIGHUP
            signal.signal(number, signal.default_int_handler)
    try:
        if options.model_repository is None:
            tune(options)
        else:
            tune_model(options, options.model_repository)
    except KeyboardInterrupt:
        sys.stderr.write("Interrupted: nothing is written\n")
        return INTERRUPTED
    return 0


def _score(options: ScoreOptions) -> int:
    from pipeline.launch.offline_command import run_score

    try:
        run_score(options)
    except KeyboardInterrupt:
        sys.stderr.write(f"Interrupted: call it again to go on with {options.out}\n")
        return INTERRUPTED
    return 0


def _evaluate(options: EvaluateOptions) -> int:
    from pipeline.launch.offline_command import run_evaluate

    try:
        run_evaluate(options)
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0


def _export_kubernetes(options: ExportKubernetesOptions) -> None:
    from pipeline.launch.kubernetes.export_command import export_kubernetes

    export_kubernetes(options)


def _upgrade(options: UpgradeOptions) -> int:
    from pipeline.launch.upgrade_command import upgrade_model

    return 0 if upgrade_model(options) else EXIT_MISS


def _agent(options: AgentOptions) -> None:
    from pipeline.config.config_file import LoggingConfig
    from pipeline.nodes.agent import create_settings, run_agent
    from pipeline.process.log import set_up_logging

    settings = create_settings(
        options.address,
        options.token_file,
        options.cert,
        options.key,
        options.max_workers,
        options.idle_timeout,
    )
    set_up_logging(LoggingConfig(), "agent", "agent", beside_app=False)
    run_agent(settings)


def _ray_up(options: RayUpOptions) -> None:
    end_plainly()
    survive_hangups()
    with left_at_once():
        from pipeline.launch.ray_command import ray_up
    ray_up(options)


def _stop(options: StopOptions) -> None:
    from pipeline.launch.stop_command import choose_services, stop

    stop(choose_services(options.port, options.pid), options.timeout)


def _kill(options: KillOptions) -> None:
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
    groups: dict[str, Commands] = {}
    for command in _COMMANDS:
        group, _, subcommand = command.name.partition(" ")
        if subcommand and group not in groups:
            if group == "export":
                add_conversion(commands)
            groups[group] = _add_group(commands, group)
        command.add_to(groups[group] if subcommand else commands)
    return parser


def _add_group(commands: Commands, name: str) -> Commands:
    """Add a command that has subcommands, and return the object to which subcommands are added."""
    help_text, example, metavar = _GROUPS[name]
    parser = commands.add_parser(name, help=help_text, epilog=f"Example: {example}")
    return parser.add_subparsers(required=True, metavar=metavar)


_GROUPS = {
    "export": (
        "write a service for Triton, Kubernetes or KServe",
        "paddlewheel export kubernetes myservice --output kubernetes",
        "FORMAT",
    ),
    "ray": (
        "run a service whose workers are on a Ray cluster",
        "paddlewheel ray up myservice --address 10.0.0.2:6379",
        "COMMAND",
    ),
}
"""Help text, example and metavar of each command that has commands of its own."""


class _Command(NamedTuple):
    """A `paddlewheel` command: its name, its function, and the dataclass that declares its options."""

    name: str
    run: Callable[[Any], int | None]
    options: type
    help_text: str
    example: str

    def add_to(self, commands: Commands) -> None:
        """Add the command and its options to the parser of `paddlewheel`."""
        parser = add_command(commands, self.name.rpartition(" ")[2], self.call, self.help_text, self.example)
        if self.options is ServeOptions:
            add_flags(parser)
        else:
            add_options(parser, self.options)
        if self.name == "text":
            parser.epilog, parser.formatter_class = TEXT_EXAMPLES, argparse.RawDescriptionHelpFormatter

    def call(self, values: argparse.Namespace) -> int | None:
        """Run the command with the parsed values, and return its exit code; None means 0.

        Raises ServingError for a command that fails; `main` prints the message.
        """
        return self.run(parse_options(self.options, values))


_SERVE = _Command(
    "serve",
    start_server,
    ServeOptions,
    "serve a Triton model repository, with Triton's flags",
    "paddlewheel serve --model-repository models",
)
_COMMANDS = (
    _Command(
        "run",
        _run_service_script,
        RunOptions,
        "run a service's script, as `python3 SCRIPT` does",
        "paddlewheel run --config production.yml web_service.py",
    ),
    _Command(
        "text",
        _serve_texts,
        TextOptions,
        "serve a model of texts: labels, entities or zero-shot answers over every endpoint",
        "paddlewheel text models/ernie-news",
    ),
    _SERVE,
    _Command(
        "explain",
        _explain,
        ExplainOptions,
        "tell what a Triton model repository comes to, and what in it can't be served",
        "paddlewheel explain models",
    ),
    _Command(
        "new",
        _new,
        NewOptions,
        "write a service for a serving model: web_service.py and config.yml",
        "paddlewheel new myservice --model models/mine",
    ),
    _Command(
        "config",
        _config,
        ConfigOptions,
        "print every key of config.yml, and of a model's serving.yml, with type, default and meaning",
        "paddlewheel config --language zh",
    ),
    _Command(
        "doctor",
        _doctor,
        DoctorOptions,
        "check Python, packages, Paddle, CPU, GPU and ports, and make a real prediction",
        "paddlewheel doctor --config production.yml",
    ),
    _Command(
        "tune",
        _tune,
        TuneOptions,
        "find a service's fastest settings by real requests, and write them into its config.yml",
        "paddlewheel tune myservice --sample texts.txt --p99 50ms --budget 5m",
    ),
    _Command(
        "score",
        _score,
        ScoreOptions,
        "have all rows of a file answered, and write them with their answers",
        "paddlewheel score news.jsonl scored.jsonl --service localhost:18082",
    ),
    _Command(
        "evaluate",
        _evaluate,
        EvaluateOptions,
        "compare answers with the labels of a file: accuracy, F1, confusion matrix, latency",
        "paddlewheel evaluate test.jsonl --gold label --service localhost:18082 --report build/news",
    ),
    _Command(
        "export triton",
        export_triton,
        ExportTritonOptions,
        "write a service of texts as a Triton model repository",
        "paddlewheel export triton --service services/text_classification --output models",
    ),
    _Command(
        "export kubernetes",
        _export_kubernetes,
        ExportKubernetesOptions,
        "write the objects with which Kubernetes and KServe run a service",
        "paddlewheel export kubernetes myservice --output kubernetes --image registry.example/myservice:1",
    ),
    _Command(
        "upgrade",
        _upgrade,
        UpgradeOptions,
        "let a new version take over if it answers live requests as the served version",
        "paddlewheel upgrade classifier 2 --url http://localhost:8000 --tolerance 0.01",
    ),
    _Command(
        "agent",
        _agent,
        AgentOptions,
        "run workers on this machine for services whose front is on another",
        "paddlewheel agent --address 0.0.0.0:7071 --token-file token",
    ),
    _Command(
        "ray up",
        _ray_up,
        RayUpOptions,
        "run a service or model repository whose workers Ray places on the nodes of its cluster",
        "paddlewheel ray up myservice --address 10.0.0.2:6379 --resources ocr=CPU:2,GPU:1",
    ),
    _Command(
        "stop",
        _stop,
        StopOptions,
        "have this folder's services answer what they have admitted, and end",
        "paddlewheel stop --port 18082",
    ),
    _Command(
        "kill",
        _kill,
        KillOptions,
        "end this folder's services and their workers at once; requests under way get no answer",
        "paddlewheel kill --pid 4711",
    ),
)
