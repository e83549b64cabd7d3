"""`paddlewheel tune`: measures a service with real requests to find the fastest settings of its model.

The settings (engine, instances, batch, threads) are written into config.yml. `tune --record` records requests
of the running service to measure with.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.status import Status

from pipeline.config.op_section import LocalServiceConf
from pipeline.config.report import read_yaml
from pipeline.config.value_types import AUTO
from pipeline.errors import ConfigError
from pipeline.launch.command_options import TuneOptions
from pipeline.launch.commands import find_service_files, require_place
from pipeline.launch.stop_command import choose_services
from pipeline.models.serving_model import choose_version, merge_model_settings
from pipeline.models.variants import load_for_engine, ways_to_run
from pipeline.plugins import ENGINES, find
from pipeline.process import recording
from pipeline.process.environment import usable_cores
from pipeline.process.processes import RunningService
from pipeline.tuning.candidate import Candidate, NotStarted, Script, opened
from pipeline.tuning.marked_lines import other_machine, require_lines, with_settings
from pipeline.tuning.sample import Example, SampleRequest, build_requests, read_sample_lines
from pipeline.tuning.tune import (
    MODEL_SECTION,
    Chosen,
    Goal,
    Measured,
    Round,
    Search,
    Settings,
    parse_settings,
)
from pipeline.tuning.tune_report import as_json, choice_lines, draw, further_lines, print_table

_BEGINS_WITHIN_S = 5.0
_ENDS_WITHIN_S = 5.0
_POLL_S = 0.05


def record_requests(config: Path, to: Path, max_s: float, console: Console) -> int:
    """Record in a .jsonl file the requests that a running service answers, and return their number.

    config: config.yml whose HTTP port selects the service. to: the new file. The recording ends after `max_s`
    seconds, 1,000 requests or 16 MiB, or at Ctrl-C. Raises ConfigError, and NotStopped if no such service
    runs.
    """
    if to.suffix != ".jsonl" or to.exists():
        why = "is there already" if to.exists() else "has another ending"
        raise ConfigError(f"--record {to} {why}: name a new file *.jsonl")
    require_place("--record", to)
    (service,) = choose_services(port=_http_port(config))
    if not recording.takes_signal(service.pid):
        raise ConfigError(f"{service} does not record requests: it is of an older version, or still starts")
    try:
        descriptor = recording.create(service.pid)
    except FileExistsError:
        raise ConfigError(
            f"{recording.get_recording_path(service.pid)} is there: "
            "another recording is under way, or was broken off; "
            "delete the file then"
        ) from None
    except OSError as exc:
        raise ConfigError(
            f"{recording.get_recording_path(service.pid)} can't be made ({exc.strerror})"
        ) from exc
    try:
        with _stop_on_signals() as stop_requested:
            _wait(service, descriptor, max_s, stop_requested, console)
        lines = Path(f"/proc/self/fd/{descriptor}").read_bytes()
    finally:
        os.close(descriptor)
        recording.get_recording_path(service.pid).unlink(missing_ok=True)
    if not lines:
        raise ConfigError(f"{service} has answered no request that can be asked again; nothing is written")
    to.write_bytes(lines)
    return lines.count(b"\n")


def _http_port(config: Path) -> int:
    port = read_yaml(config).get("http_port")
    if not isinstance(port, int):
        raise ConfigError(f"{config} has no http_port, by which the running service is found")
    return port


@contextlib.contextmanager
def _stop_on_signals() -> Iterator[threading.Event]:
    """Context manager: make Ctrl-C and SIGTERM set the yielded event instead of ending the process.

    The process must continue, to end the recording in the service.
    """
    stop_requested = threading.Event()
    numbers = signal.SIGINT, signal.SIGTERM
    before = [signal.signal(number, lambda *_: stop_requested.set()) for number in numbers]
    try:
        yield stop_requested
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def _wait(
    service: RunningService, descriptor: int, max_s: float, stop_requested: threading.Event, console: Console
) -> None:
    """Signal the service to start recording, and return when the recording has ended.

    descriptor: the open file to which the service writes. max_s: seconds after which the recording is ended.
    Raises ConfigError if the service does not start recording.
    """
    _signal(service)
    over = time.monotonic() + _BEGINS_WITHIN_S
    while not recording.is_written(descriptor) and not os.fstat(descriptor).st_size:
        if time.monotonic() > over:
            raise ConfigError(f"{service} does not begin to record; its log says why")
        time.sleep(_POLL_S)
    until = time.monotonic() + max_s
    with Status("", console=console) as shown:
        while recording.is_written(descriptor) and not stop_requested.is_set() and time.monotonic() < until:
            size = os.fstat(descriptor).st_size
            shown.update(f"Recording what {service} is asked: {size / 1024:.0f} KB (Ctrl-C ends it)")
            stop_requested.wait(_POLL_S)
    if recording.is_written(descriptor):
        _signal(service)
    over = time.monotonic() + _ENDS_WITHIN_S
    while recording.is_written(descriptor) and time.monotonic() < over:
        time.sleep(_POLL_S)


def _signal(service: RunningService) -> None:
    with contextlib.suppress(ProcessLookupError):  # the service has ended, and with it the recording
        os.kill(service.pid, recording.SIGNAL)


SHORTEST_S, MAX_S = 5.0, 24 * 3600.0
_FIRST_START_S = 120.0  # for the first start, even with a shorter budget
_CHECKED = 100  # requests of a sample that are checked before the measurements
_MIN_ANSWERS, _SLOW_S = 20, 10.0  # answers per connection in a round; limit of a round that waits for them
_MAX_FAILED = 0.01  # share of failed requests; a round with more does not count
_PROBE = (31, 29, 7)  # instances, batch and threads that scripts hardly use


def tune(options: TuneOptions) -> None:
    """Measure a service under several settings, and write the fastest settings into its config.yml.

    Also prints and writes a report. With `options.record` only records requests. Raises ConfigError, where
    possible before the measurements.
    """
    if not SHORTEST_S <= options.budget_s <= MAX_S:
        raise ConfigError(f"--budget: from {SHORTEST_S:g} seconds to 24 hours, e.g. --budget 5m")
    if options.service is None:
        raise ConfigError("name a service, or a model repository with --model-repository")
    script, config = find_service_files(options.service, options.config)
    if options.record is not None:
        _record(options, config, options.record)
        return
    lines = read_sample_lines(options.sample) if options.sample else []
    if options.report is not None:
        require_place("--report", options.report)
    op = _select_op(config, options.op)
    text = config.read_bytes().decode("utf-8")
    require_lines(config, text, op)  # before minutes are spent, not after
    if not (options.dry_run or os.access(config, os.W_OK)):
        raise ConfigError(f"{config} may not be written; --dry-run prints what would be")
    console = Console(stderr=True)
    if machine := other_machine(config):
        console.print(f"{config} was tuned on {machine}: tuning starts from that", soft_wrap=True)
    with opened(script, config, op) as source:
        run = _Run(options, source, lines, console)
        search, goal, chosen = run.search()
    if not options.dry_run:
        print_table(Console(width=None if sys.stdout.isatty() else 160), search.measured(), chosen)
    report_lines = choice_lines(goal, chosen, search.baseline())
    further = further_lines(goal, chosen, run.missing, len(search.left_out))
    report_lines += ["to go further:", *(f"  - {line}" for line in further)] if further else []
    console.print("\n".join(report_lines), soft_wrap=True, markup=False, highlight=False)
    text = config.read_bytes().decode("utf-8")  # read again: the user may have edited the file meanwhile
    written = with_settings(text, op, chosen.settings)
    if options.dry_run:
        sys.stdout.writelines(diff_lines(text, written, config))
    else:
        config.write_bytes(written.encode("utf-8"))
        console.print(f"written: {config}", soft_wrap=True)
    report = options.report or (None if options.dry_run else config.parent / "tuned")
    if report is not None:
        facts = {"script": script.name, "op": op, "requests": len(run.requests)}
        Path(f"{report}.json").write_text(as_json(search, goal, chosen, facts), "utf-8")
        title = f"Op {op} of {script.name} on {goal.cores} cores"
        drawn = draw(title, search.measured(), chosen, goal.p99_ms)
        Path(f"{report}.svg").write_text(drawn, "utf-8")
        console.print(f"everything measured: {report}.json, {report}.svg", soft_wrap=True)


def _record(options: TuneOptions, config: Path, to: Path) -> None:
    if options.sample is not None:
        raise ConfigError("--record writes a sample, and --sample reads one: record first, then tune with it")
    console = Console(stderr=True)
    requests = record_requests(config, to, options.budget_s, console)
    console.print(
        f"{requests} requests recorded: {to}\n"
        f"tune with them: paddlewheel tune {options.service} --sample {to}",
        soft_wrap=True, markup=False, highlight=False,
    )  # fmt: skip


class _Run:
    """One execution of `paddlewheel tune`: starts a service for each candidate setting, and measures it."""

    def __init__(
        self, options: TuneOptions, source: Script, lines: Sequence[tuple[int, str]], console: Console
    ) -> None:
        self.missing: dict[str, str] = {}
        self.requests: list[SampleRequest] = []
        self._options = options
        self._source = source
        self._lines = lines
        self._console = console

    def search(self) -> tuple[Search, Goal, Chosen]:
        """Search for the fastest settings.

        Returns the search with its measurements, the goal, and the choice. Raises ConfigError if the
        service's step (Op) can't be tuned, or no candidate can run the model.
        """
        resolved = self._source.resolved()
        section = resolved["op"][self._source.op]
        _check_section(self._source.op, resolved, section)
        conf = section[MODEL_SECTION]
        directory = choose_version(Path(conf["model_config"]), conf.get("model_version")).directory
        baseline = self._baseline(directory, section)
        self._check_script(baseline)
        options = self._options
        goal = self._goal = Goal(
            self._engines(directory, baseline.engine if _on_a_card(conf) else None),
            options.precision or (baseline.precision,),
            usable_cores(),
            options.budget_s,
            options.p99_ms,
            options.connections,
        )
        self._console.print(
            f"Op {self._source.op}: at most {goal.max_candidates()} candidates of "
            f"{', '.join(goal.engines)} on {goal.cores} cores, {options.budget_s:g} s at most",
            soft_wrap=True,
        )
        with self._progress():
            search = Search(goal, baseline, self._measure)
            return search, goal, search.run()

    def _baseline(self, directory: Path, section: dict[str, Any]) -> Settings:
        """Return the current settings: those of config.yml, completed by the model's serving.yml.

        directory: folder of the model. section: the Op's resolved section of config.yml.
        """
        model = load_for_engine(directory, section[MODEL_SECTION].get("engine"))
        baseline = parse_settings(section, model.engine)
        config_section = read_yaml(self._source.config)["op"][self._source.op]
        if config_section[MODEL_SECTION].get("precision") is None:
            model_conf = merge_model_settings(model, LocalServiceConf())
            baseline = msgspec.structs.replace(baseline, precision=model_conf.precision)
        if config_section.get("batch_size") == AUTO:
            baseline = msgspec.structs.replace(baseline, batch=AUTO)
        return baseline

    def _engines(self, directory: Path, gpu_engine: str | None) -> tuple[str, ...]:
        """Return the names of the inference engines that can run the model here.

        gpu_engine: the engine of a model on a GPU, which is not changed; None on the CPU. Raises ConfigError
        if no engine can run the model, or an engine of --engine can't.
        """
        named = self._options.engine
        installed = find(ENGINES)
        if unknown := [name for name in named if name not in installed]:
            raise ConfigError(
                f"--engine {unknown[0]}: there is none of that name, only {', '.join(installed)}"
            )
        options = ways_to_run(directory, named or ((gpu_engine,) if gpu_engine else None))
        able = [option.engine for option in options if not option.refusal]
        reasons = [f"{option.engine}: {option.refusal}" for option in options if option.refusal]
        self.missing.update(
            (option.engine, option.refusal)
            for option in options
            if option.model is not None and option.refusal
        )
        if not able or (named and reasons):
            raise ConfigError("no candidate can run the model here:\n" * (not able) + "\n".join(reasons))
        return tuple(able)

    def _check_script(self, baseline: Settings) -> None:
        """Raise ConfigError if the service's script fixes a setting that is to be tuned.

        A script overrides config.yml, so that the candidates would all run with that value.
        """
        instances, batch, threads = _PROBE
        probe = msgspec.structs.replace(
            baseline, instances=instances, batch=batch, threads=threads, delay_ms=1.5
        )
        section = self._source.resolved(probe)["op"][self._source.op]
        effective = parse_settings(section, probe.engine)
        probed, resolved = probe.of_op() | probe.of_model(), effective.of_op() | effective.of_model()
        fixed = [key for key in probed if probed[key] != resolved[key]]
        if fixed:
            raise ConfigError(
                f"the script gives {', '.join(fixed)} to Op {self._source.op}, which goes before config.yml: "
                "take that out of the script, and put it into config.yml"
            )

    def _measure(self, settings: Settings, round_s: float, until: float) -> Measured:
        self._print_progress(settings.name)
        rounds: list[Round] = []
        if not self.requests:  # the first service must start, or there is nothing to choose from
            until = max(until, time.monotonic() + _FIRST_START_S)
        try:
            with self._source.started(settings, until) as candidate:
                self._ask_first(candidate)
                rounds = measure_rounds(self._goal, self.requests, candidate, round_s, until)
        except NotStarted as exc:
            return Measured(settings, (), exc.message)
        return Measured(settings, tuple(rounds))

    def _ask_first(self, candidate: Candidate) -> None:
        """Build the requests for the measurements, once the first service has started, and try them.

        Raises ConfigError for a request that the service refuses.
        """
        if self.requests:
            return
        example = Example.of_openapi(msgspec.json.decode(candidate.get("/openapi.json")[1]))
        sample = self._options.sample
        as_texts = sample is not None and sample.suffix == ".txt"
        requests = build_requests(self._lines, as_texts=as_texts, example=example, key=self._options.key)
        for request in requests[:_CHECKED]:
            if why := candidate.refusal(request):
                where = f"{sample} line {request.line}" if request.line else "the service's own example"
                raise ConfigError(f"{where} is refused by the service: {why}")
        self.requests = requests

    def _progress(self) -> AbstractContextManager[object]:
        columns = TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn()
        shown = self._console.is_terminal
        self._bar = Progress(*columns, console=self._console, disable=not shown, transient=True)
        self._task: TaskID = self._bar.add_task("starting", total=self._options.budget_s)
        self._begun = time.monotonic()
        return self._bar

    def _print_progress(self, name: str) -> None:
        self._bar.update(self._task, description=name, completed=time.monotonic() - self._begun)
        if not self._console.is_terminal:
            self._console.print(f"{time.monotonic() - self._begun:6.1f} s  {name}", soft_wrap=True)


def measure_rounds(
    goal: Goal, requests: Sequence[SampleRequest], candidate: Candidate, round_s: float, until: float
) -> list[Round]:
    """Load-test a candidate's service with more and more connections.

    Returns a measurement for each number of connections. round_s: seconds of a measurement. until:
    `time.monotonic()` instant after which no measurement begins. Raises NotStarted if too many requests fail
    in the first measurement.
    """
    levels, warm_s = goal.connections, round_s / 5
    with contextlib.suppress(NotStarted):  # warm-up: the first requests of a shape may take long
        candidate.load(requests, levels[-1], round_s / 2, warm_s)
    round_s = max(round_s, min(_MIN_ANSWERS * candidate.answer_s(requests[0]), _SLOW_S))
    rounds: list[Round] = []
    before: Round | None = None
    for connections in levels:
        last = candidate.load(requests, connections, round_s, warm_s)
        if last.failed > _MAX_FAILED * len(last.latencies_ms):
            if not rounds:
                raise NotStarted(f"{last.failed} requests failed at {connections} connections: {last.error}")
            break
        rounds.append(last)
        if time.monotonic() > until or not goal.goes_on(before, last):
            break
        before = last
    return rounds


def _select_op(config: Path, named: str | None) -> str:
    """Return the name of the Op (step of the service) to tune: `named`, else the only Op with a model.

    config: path of config.yml. Raises ConfigError if there is no such Op.
    """
    sections: dict[str, Any] = read_yaml(config).get("op") or {}
    with_model = [
        name
        for name, section in sections.items()
        if isinstance(section, dict) and isinstance(section.get(MODEL_SECTION), dict)
    ]
    available = f"it has {', '.join(with_model) or 'none'}"
    if named is not None and named not in with_model:
        raise ConfigError(f"--op {named}: {config} has no such Op with a {MODEL_SECTION}; {available}")
    if named is None and len(with_model) != 1:
        raise ConfigError(f"{config}: name the Op to tune with --op, one with a {MODEL_SECTION}; {available}")
    return named or with_model[0]


def _check_section(op: str, resolved: dict[str, Any], section: dict[str, Any]) -> None:
    if section["server_endpoints"]:
        raise ConfigError(f"op.{op}: its model runs on server_endpoints; tune it there")
    if not section[MODEL_SECTION]["model_config"]:
        raise ConfigError(f"op.{op}.{MODEL_SECTION}: it names no model_config, so there is nothing to tune")
    if resolved["build_dag_each_worker"] and resolved["worker_num"] > 1:
        raise ConfigError(
            "build_dag_each_worker multiplies the instances: set it to false, concurrency says their number"
        )


def _on_a_card(conf: dict[str, Any]) -> bool:
    return conf["device_type"] not in (-1, 0) or bool(conf["devices"])


def diff_lines(before: str, after: str, config: Path) -> list[str]:
    """Return the change of a configuration as a unified diff."""
    lines = before.splitlines(keepends=True), after.splitlines(keepends=True)
    return list(difflib.unified_diff(*lines, str(config), f"{config} (tuned)"))
