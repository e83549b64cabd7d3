"""Processes of this project: the commands that start them, and how to find running services in /proc."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from pipeline.process import run_module

SERVER, WORKER, OUTPUT_READER = "pipeline.front", "pipeline.worker", "pipeline.output"
WORKER_PROXY = "pipeline.nodes"
LISTENING = "0A"  # st of /proc/net/tcp
HOME = (
    "SERVING_HOME"  # Paddle Serving's name for the folder that its `stop` looks at; else the working folder
)
_PR_SET_PDEATHSIG = 1
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_KILL_PASSES = 3
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def python_module(module: str, python: str = sys.executable, *, parent: int = 0) -> list[str]:
    """Return the command line that runs a module of this package, even if user code has the same name.

    -P keeps the folder of the started file off sys.path. parent: PID of the process with which the new
    process dies; 0: none.
    """
    return [python, "-P", run_module.__file__, str(parent), module]


def open_standard_files() -> None:
    """Open /dev/null as file descriptor 0, 1 or 2 if it is closed, before exec replaces this process.

    Otherwise files that the new program opens would get these numbers, and libuv aborts a process that closes
    such a file.
    """
    for number in range(3):
        try:
            lasts = os.get_inheritable(number)
        except OSError:
            lasts = False
        if not lasts:
            null = os.open(os.devnull, os.O_RDWR)
            os.dup2(null, number)  # which may be the number itself
            if null != number:
                os.close(null)
            os.set_inheritable(number, True)


def runs_module(pid: int, module: str) -> bool:
    """Whether a process was started with `python_module(module)`; False if the process has ended."""
    return _runs(command_line(pid), module)


def module_arguments(pid: int, module: str) -> list[str]:
    """Return the arguments of a process that runs a module of this same installation; empty for others."""
    arguments = command_line(pid)
    is_ours = _runs(arguments, module) and arguments[2] == run_module.__file__
    return arguments[5:] if is_ours else []


def _runs(arguments: list[str], module: str) -> bool:
    if len(arguments) < 5 or arguments[1] != "-P" or arguments[4] != module:
        return False
    return Path(arguments[2]).parts[-3:] == Path(run_module.__file__).parts[-3:]


def die_with(parent: int) -> None:
    """Make the kernel kill this process when its parent dies, even inside a native call."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def kill_groups(groups: Collection[int]) -> None:
    """Kill all processes of some process groups, also those that a model's code has started.

    The resource tracker of multiprocessing is not killed: it ends by itself, after removing the shared memory
    of killed processes.
    """
    for _ in range(_KILL_PASSES):  # a process may fork in the moment in which it is killed
        alive = [pid for pid in pids() if _live_group(pid) in groups and not _is_resource_tracker(pid)]
        for pid in alive:
            with contextlib.suppress(OSError):  # it has ended, or is another user's
                os.kill(pid, signal.SIGKILL)
        if not alive:
            return


def _live_group(pid: int) -> int:
    """Return the process group of a process; 0 if the process has ended."""
    fields = _stat_fields(str(pid))
    return 0 if not fields or fields[0] == "Z" else int(fields[2])


def _is_resource_tracker(pid: int) -> bool:
    return any("multiprocessing.resource_tracker" in argument for argument in command_line(pid))


def _stat_fields(task: str) -> list[str]:
    """Return the fields of /proc/TASK/stat after the process name (proc(5)); empty if the task has ended."""
    try:
        return Path(f"/proc/{task}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
    except OSError:
        return []


def cpu_ticks(pid: int) -> int:
    """Return the CPU time that a process has used, in clock ticks; 0 if the process has ended."""
    return sum(map(int, _stat_fields(str(pid))[11:13]))


def signal_name(number: int) -> str:
    """Return the name of a signal number, also of real-time signals, for which Python has no names."""
    with contextlib.suppress(ValueError):
        return signal.Signals(number).name
    if signal.SIGRTMIN < number < signal.SIGRTMAX:
        above, below = number - signal.SIGRTMIN, signal.SIGRTMAX - number
        return f"SIGRTMIN+{above}" if above <= below else f"SIGRTMAX-{below}"
    return f"signal {number}"


def name_process(name: str) -> None:
    """Set the name by which `top` and `ps -o comm` show this process, cut to 15 bytes."""
    with contextlib.suppress(OSError):  # a sandbox may forbid it
        Path("/proc/self/comm").write_text(name.encode()[:15].decode(errors="ignore"), "utf-8")


def command_line(pid: int) -> list[str]:
    """Return the command line of a process as a list of arguments; empty if the process has ended."""
    try:
        content = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return []
    return content.decode("utf-8", "replace").split("\0")[:-1]


class Activity(NamedTuple):
    """The state and the CPU time of a process, or of one of its threads."""

    state: str  # of the thread, or of the main thread; see proc(5)
    cpu_s: float  # CPU time of the thread, or of all threads

    @property
    def is_stopped(self) -> bool:
        """Whether the process is stopped by a signal (SIGSTOP), not by a debugger."""
        return self.state == "T"


def read_activity(pid: int, thread_id: int = 0) -> Activity | None:
    """Return the state and CPU time of a process or thread; None if it has ended."""
    fields = _stat_fields(f"{pid}/task/{thread_id}" if thread_id else str(pid))
    return Activity(fields[0], sum(map(int, fields[11:13])) / _TICKS_PER_S) if fields else None


def proportional_bytes(pid: int) -> int:
    """Return the memory of a process in bytes, with its share of pages that several processes map.

    0 if the process has ended, or if the kernel does not report the memory.
    """
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text("ascii").splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) << 10
    return 0


def resident_bytes(pid: int | str = "self") -> float:
    """Return the resident memory of a process in bytes; 0 if the process has ended."""
    try:
        with open(f"/proc/{pid}/statm") as statm:  # noqa: PTH123 - a few microseconds, on each scrape
            return float(statm.read().split()[1]) * _PAGE_BYTES
    except OSError:
        return 0.0


@dataclass(frozen=True)
class RunningService:
    """A service running on this machine, found in /proc: PID of its server process, folder and ports."""

    pid: int
    folder: Path | None  # None when this user may not see it
    ports: tuple[int, ...]  # empty when this user may not see them

    def __str__(self) -> str:
        ports = f", ports {' and '.join(map(str, self.ports))}" if self.ports else ""
        return f"process {self.pid}{ports}"

    def worker_pids(self) -> list[int]:
        """Return the PIDs of the service's worker processes, without processes that user code has started."""
        return [pid for pid in pids() if _parent(pid) == self.pid and runs_module(pid, WORKER)]


def running_services() -> list[RunningService]:
    """Return all services running on this machine that this user can see, ordered by PID."""
    sockets = listening_sockets()
    return [
        RunningService(pid, _home(pid), find_ports(pid, sockets))
        for pid in pids()
        if runs_module(pid, SERVER)
    ]


def home(environment: Mapping[str, str] = os.environ, folder: Path | None = None) -> Path:
    """Return the folder by which `stop` and `kill` find a service: $SERVING_HOME, or the working folder."""
    return Path(environment.get(HOME) or folder or Path.cwd()).resolve()


def listeners(port: int) -> Iterator[tuple[int, str]]:
    """Yield PID and command line of each process that listens on a TCP port and is visible to this user."""
    sockets = {name: number for name, number in listening_sockets().items() if number == port}
    for pid in pids() if sockets else ():
        if find_ports(pid, sockets):
            yield pid, " ".join(command_line(pid)) or "which has just ended"


def listening_sockets() -> dict[str, int]:
    """Return the TCP port of each listening socket, by the socket's name in /proc/PID/fd."""
    ports: dict[str, int] = {}
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError):  # no IPv6
            for line in Path(table).read_text("utf-8").splitlines()[1:]:
                fields = line.split()
                if fields[3] == LISTENING:
                    ports[f"socket:[{fields[9]}]"] = int(fields[1].rpartition(":")[2], 16)
    return ports


def find_ports(pid: int, sockets: Mapping[str, int]) -> tuple[int, ...]:
    """Return the listening TCP ports of a process, from the table of `listening_sockets`."""
    ports = set()
    with contextlib.suppress(OSError):  # the process ended, or is another user's
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):  # closed in between
                ports.add(sockets.get(str(descriptor.readlink())))
    return tuple(sorted(port for port in ports if port is not None))


def pids() -> list[int]:
    """Return the PIDs of all processes, in ascending order."""
    return sorted(int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())


def _home(pid: int) -> Path | None:
    try:
        folder = Path(f"/proc/{pid}/cwd").readlink()
        content = Path(f"/proc/{pid}/environ").read_bytes().decode("utf-8", "replace")
    except OSError:
        return None
    return home(dict(entry.partition("=")[::2] for entry in content.split("\0")), folder)


def _parent(pid: int) -> int:
    fields = _stat_fields(str(pid))
    return int(fields[1]) if fields else 0
