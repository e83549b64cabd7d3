"""WorkerProcess: a process as the front sees it, with the instances of an Op that live in it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from pipeline.api.app import App
from pipeline.config.config_file import LocalServiceConf, OpConfig
from pipeline.engines.base import Engine, find_engine, shares_a_process
from pipeline.errors import ConfigError
from pipeline.front.metrics.metrics import resident_bytes
from pipeline.front.pool.outputs import Output, Outputs
from pipeline.front.pool.worker_instance import DispatchEvents, Instance, State, Task, TimeLimits
from pipeline.messages.messages import Failed, OwnFamily, Ready, Start
from pipeline.messages.protocol_version import OTHER_VERSION, PACKAGE_CHANGED, PROTOCOL_VERSION
from pipeline.models.serving_model import CACHE_FOLDER, choose_version
from pipeline.process.environment import MODEL_PROCESS
from pipeline.process.isolation import run_isolated
from pipeline.process.processes import (
    WORKER,
    Activity,
    kill_groups,
    python_module,
    read_activity,
    signal_name,
)
from pipeline.tuning.auto import fitted

_NOT_OURS = {CACHE_FOLDER, "__pycache__"}  # what runs of a model leave in its folder
FileState = tuple[str, int, int, int]  # path, inode, bytes, time of its last change in ns


@dataclass(frozen=True)
class Plan:
    """Configuration and files of an Op's workers, until the Op is loaded again."""

    app: App  # the service, with the model directory of the chosen version
    version: str  # of the model; empty for an Op without one
    engine: str  # of the model; empty for an Op without one
    places: list[range]  # numbers of the instances, by process
    files: frozenset[FileState]  # of the model and the scripts; a later plan differs where they have changed
    note: str = ""  # difference from the version before, for the log; empty without one


def plan(app: App, op: str) -> Plan:
    """The plan for what is on disk now. Raises ConfigError for a version that is not there."""
    conf = app.config.op[op].local_model
    version, folders, note = "", [], ""
    if conf is not None:
        directory, version = choose_version(Path(app.folder, conf.model_dir), conf.model_version)
        app, note = _with_model(app, op, conf, directory)
        folders.append(directory)
    folders += [Path(m.folder, m.version) for m in app.models if m.op == op and m.folder]
    engine = _engine(app, app.config.op[op].local_model)
    name = "" if engine is None else engine.name
    return Plan(app, version, name, placement(app, op), frozenset(_states(app, folders)), note)


def placement(app: App, op: str) -> list[range]:
    """The numbers of the Op's instances, by the process that hosts them.

    With build_dag_each_worker there are `concurrency` instances for each of `worker_num`; what one worker's
    DAG would have as threads is together here.
    """
    config = app.config
    concurrency = config.op[op].concurrency
    count = concurrency * (config.worker_num if config.build_dag_each_worker else 1)
    together = concurrency if shares_process(app, op) else 1
    return [range(first, first + together) for first in range(0, count, together)]


def shares_process(app: App, op: str) -> bool:
    """Whether instances of this Op are threads: `dag.is_thread_op` asks for it and no engine forbids it."""
    return app.config.dag.is_thread_op and not wants_processes(app, op)


def wants_processes(app: App, op: str) -> bool:
    """Whether the Op's engine runs one batch at a time in a process, so that threads would only wait for it.

    An Op without a model has no engine, and a remote one waits for the network without the lock.
    """
    conf = app.config.op[op].local_model
    engine = _engine(app, conf)
    return conf is not None and (engine is None or not shares_a_process(engine))


def _engine(app: App, conf: LocalServiceConf | None) -> Engine | None:
    """Return the engine of an Op's model; None without a model, and for a mistake that the worker will
    report.
    """
    if conf is None:
        return None
    try:
        directory, _ = choose_version(Path(app.folder, conf.model_dir), conf.model_version)
        return find_engine(directory, conf.engine)
    except (ConfigError, OSError):
        return None


def _with_model(app: App, op: str, conf: LocalServiceConf, directory: Path) -> tuple[App, str]:
    """The app with the model of this directory, run as was chosen where config.yml says `auto`; the note."""
    conf = conf.model_copy(update={"model_dir": str(directory), "model_version": None})
    section = app.config.op[op].model_copy(update={"local_service_conf": conf})
    choices, note = dict(app.choices), ""
    if op in choices:
        section, choice, note = fitted(section, choices.pop(op), directory)
        choices |= {op: choice} if choice is not None else {}
    config = app.config.model_copy(update={"op": {**app.config.op, op: section}})
    return replace(app, config=config, choices=choices), note


def _states(app: App, folders: list[Path]) -> Iterator[FileState]:
    files = [p for folder in folders for p in folder.rglob("*") if _NOT_OURS.isdisjoint(p.parts)]
    for path in [*files, *Path(app.script).parent.glob("*.py")]:
        try:
            status = path.stat()
        except OSError:  # gone meanwhile
            continue
        yield str(path), status.st_ino, status.st_size, status.st_mtime_ns


# cgroup v2 and v1 as a container sees its own; the whole machine.
COUNTERS = (
    Path("/sys/fs/cgroup/memory.events"),
    Path("/sys/fs/cgroup/memory/memory.oom_control"),
    Path("/proc/vmstat"),
)


def oom_kills(counters: Sequence[Path] = COUNTERS) -> int:
    """How many processes the kernel has killed for want of memory; 0 where it does not tell."""
    kills = 0
    for counter in counters:
        with contextlib.suppress(OSError):
            lines = counter.read_text("ascii", "replace").splitlines()
            kills += sum(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))
    return kills


OUT_OF_MEMORY = " when memory ran out: give the service more, fewer instances, or a max_worker_rss"


class Keeper(Protocol):
    """Owner of processes, which replaces them: see `WorkerPool`."""

    def became_ready(self, process: WorkerProcess) -> None:
        """Its worker has said that it is ready: its instances take dispatches from now on."""
        ...

    def lost(self, process: WorkerProcess) -> None:
        """Note that the process is dying: no more replies come from its instances."""
        ...

    def died(self, process: WorkerProcess) -> None:
        """Note that the process has ended, and that the cause is known."""
        ...


class WorkerProcess:
    """Worker process with the instances of one Op, which live and die together.

    `start` spawns it; `stop` and death end it; it is not started twice.
    """

    def __init__(
        self,
        app: App,
        op: str,
        numbers: range,
        version: str,
        keeper: Keeper,
        events: DispatchEvents,
        outputs: Outputs,
    ) -> None:
        self.op = op
        self.numbers = numbers
        self.version = version  # of its model; empty for an Op without one
        limits = time_limits(app.config.op[op])
        self.instances = [Instance(op, number, self, events, limits) for number in numbers]
        self.reserved = False  # a single request has the process to itself: other instances get nothing
        self.failure: Failed | None = None  # why it could not start
        self.own_metrics: Sequence[OwnFamily] = ()  # metrics that its model counts itself
        self.refused: list[Task] = []  # refused with the cause of the death, once it is known
        self.ready_at = 0.0  # time.monotonic; 0 before
        self.ready_bytes = 0.0  # resident memory when it became ready
        self.ready_message: Ready | None = None  # describes the model; None before the process is ready
        self._app = app
        self._keeper = keeper
        self._outputs = outputs
        self._killed_because = ""
        self._oom_kills = oom_kills()
        self._ran_out_of_memory = False
        self._start_timer: asyncio.TimerHandle | None = None
        self._output: Output | None = None

    def start(self) -> None:
        """Spawn the process. Raises OSError when the system has no room for it."""
        loop = asyncio.get_running_loop()
        with contextlib.ExitStack() as unless_started:
            unless_started.callback(self.instances.clear)  # their sockets and memory go with them
            self._process = self._spawn(unless_started)
            unless_started.callback(self._process.wait)
            unless_started.callback(self._process.kill)
            self._pidfd = os.pidfd_open(self._process.pid)
            if self._output is not None:
                self._outputs.set_group(self._output, self._process.pid)
            unless_started.pop_all()
        loop.add_reader(self._pidfd, self._ended)
        loop.add_reader(self._lifeline, self._lost)
        for instance in self.instances:
            instance.listen()
        shares = shares_process(self._app, self.op)
        self.instances[0].send(Start(self._app.to_json(), self.op, self.name, self.numbers[0], shares))
        timeout_s = self._app.config.op[self.op].start_timeout
        self._start_timer = loop.call_later(timeout_s, self.kill, f"it did not start within {timeout_s:g} s")

    def _spawn(self, unless_started: contextlib.ExitStack) -> subprocess.Popen[bytes]:
        with contextlib.ExitStack() as until_spawned:
            self._lifeline, worker_end = socket.socketpair()
            unless_started.enter_context(self._lifeline)  # a kept traceback keeps this process, too
            until_spawned.enter_context(worker_end)
            ends = [instance.connect(until_spawned) for instance in self.instances]
            fds = (self._outputs.log_fd, worker_end.fileno(), *itertools.chain.from_iterable(ends))
            self._output = self._outputs.open(self.name)
            unless_started.callback(self._outputs.forget, self._output)
            until_spawned.callback(self._output.close_theirs)
            stdout, stderr = self._output.theirs
            return subprocess.Popen(
                [*python_module(WORKER), PROTOCOL_VERSION, str(os.getpid()), *map(str, fds)],
                pass_fds=fds,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                env={**MODEL_PROCESS, **os.environ},
                process_group=0,  # a Ctrl-C in the terminal is for the front alone
            )

    @property
    def name(self) -> str:
        """The Op's name with the numbers of its instances, as in "bert.0" or "bert.0-3"."""
        first, last = self.numbers[0], self.numbers[-1]
        return f"{self.op}.{first}" if first == last else f"{self.op}.{first}-{last}"

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def served(self) -> int:
        """Requests that its instances have answered or refused."""
        return sum(instance.served for instance in self.instances)

    @property
    def idle(self) -> bool:
        """Whether it is ready, and without work in any of its instances."""
        return all(i.state is State.READY and not i.in_flight for i in self.instances)

    @property
    def abandoned(self) -> bool:
        """Whether one of its instances is busy with an abandoned call."""
        return any(instance.abandoned is not None for instance in self.instances)

    async def abandoned_calls_end(self) -> None:
        """Returns when there is no such call any more; never where the process dies in one."""
        while calls := [i.abandoned for i in self.instances if i.abandoned is not None]:
            await asyncio.wait(calls)

    def became_ready(self, ready: Ready) -> None:
        """Note that the worker is ready: from now on all its instances take dispatches."""
        self.ready_message = ready
        self._cancel_start_timer()
        self.ready_at = time.monotonic()
        self.ready_bytes = resident_bytes(self.pid)
        for instance in self.instances:
            instance.state = State.READY
        self._keeper.became_ready(self)

    def read_activity(self, thread_id: int) -> Activity | None:
        """Return the activity of the process, or of an instance's thread where it has several instances.

        A single instance may compute in threads that its engine has started.
        """
        return read_activity(self.pid, thread_id if len(self.instances) > 1 else 0)

    def kill(self, because: str) -> None:
        """Kill the process with SIGKILL; `Keeper.died` follows."""
        self._killed_because = because
        self._process.kill()

    def stop(self) -> None:
        """Close our ends: each instance leaves after the dispatch it is in, the process with the last."""
        for instance in self.instances:
            instance.stop()

    def describe_death(self) -> str:
        """Why the process is gone, for a log line or an error."""
        if self._killed_because:
            return self._killed_because
        code = self._process.returncode
        if code == OTHER_VERSION and not self.ready_at:
            return PACKAGE_CHANGED
        if code is None or code >= 0:
            return f"exited with {code}"
        return f"killed by {signal_name(-code)}{OUT_OF_MEMORY if self._ran_out_of_memory else ''}"

    def _lost(self) -> None:
        """Read what the dying process still said."""
        asyncio.get_running_loop().remove_reader(self._lifeline)
        self._lifeline.close()
        self._process.kill()  # in case that it only broke the connection
        self._cancel_start_timer()
        for instance in self.instances:
            run_isolated(instance.disconnect)
        self._keeper.lost(self)

    def _ended(self) -> None:
        """Release everything that the dead process had, and report its death."""
        asyncio.get_running_loop().remove_reader(self._pidfd)
        os.close(self._pidfd)
        run_isolated(kill_groups, [self.pid])  # until it is reaped its number is no other process's
        run_isolated(self._reap)
        if self._lifeline.fileno() >= 0:
            run_isolated(self._lost)
        run_isolated(self._keeper.died, self)
        for instance in self.instances:
            run_isolated(instance.forget)

    def _reap(self) -> None:
        killed = self._process.wait() == -signal.SIGKILL
        self._ran_out_of_memory = killed and oom_kills() > self._oom_kills
        if self._output is not None:
            self._outputs.forget(self._output)

    def _cancel_start_timer(self) -> None:
        if self._start_timer is not None:
            self._start_timer.cancel()
            self._start_timer = None


def time_limits(config: OpConfig) -> TimeLimits:
    """The time limits of an Op's runs. A remote Op's worker bounds and repeats its calls itself."""
    timeout_ms = 0 if config.server_endpoints else max(0, config.timeout)
    return TimeLimits(timeout_ms / 1000 or math.inf, config.run_timeout or math.inf)
