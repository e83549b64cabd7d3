"""`paddlewheel stop` and `kill`: select running services on this machine, and end them."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time
from collections.abc import Iterator, Sequence

from pipeline.errors import ServingError
from pipeline.process.processes import (
    SERVER,
    RunningService,
    command_line,
    home,
    listeners,
    running_services,
    runs_module,
)

KILL_TIMEOUT_S = 10.0  # a native call on a GPU may hold a killed process for a while
COMMAND_CHARS = 120


class NotStopped(ServingError):
    """Raised if no service matches, or one may not be signalled or does not end in time; exit code 1."""

    exit_code = 1


def choose_services(port: int | None = None, pid: int | None = None) -> list[RunningService]:
    """Return the running services to stop: by port, by process id, or all services of this folder.

    Raises NotStopped if there is none; the message names services of other folders.
    """
    services = running_services()
    if port is not None:
        chosen = [service for service in services if port in service.ports]
        missed = _who_listens(port)
    elif pid is not None:
        chosen = [service for service in services if service.pid == pid]
        missed = f"Process {pid} is no service of this project{_as_command(command_line(pid))}."
    else:
        here = home()
        chosen = [service for service in services if service.folder == here]
        elsewhere = "; ".join(f"{s} in {s.folder or 'a folder of another user'}" for s in services)
        hint = f" Elsewhere: {elsewhere}; name one with --port or --pid." if elsewhere else ""
        missed = f"No service that was started in {here} runs.{hint}"
    if not chosen:
        raise NotStopped(missed)
    return chosen


def stop(services: Sequence[RunningService], timeout_s: float) -> None:
    """Stop services gracefully (SIGTERM), and wait until they have answered their admitted requests.

    timeout_s: for all services together. Raises NotStopped if services still run after that time; they
    continue to shut down.
    """
    with contextlib.ExitStack() as stack:
        handles = {service.pid: stack.enter_context(_handle(service.pid)) for service in services}
        for service in services:
            _signal(service, handles[service.pid], signal.SIGTERM)
        names = ", ".join(map(str, services))
        running = _wait(handles, timeout_s, f"Stopping {names}: requests under way are answered first")
    for service in services:
        if service.pid not in running:
            sys.stdout.write(f"Stopped: {service}\n")
    if running:
        numbers = ", ".join(map(str, running))
        raise NotStopped(
            f"Process {numbers} still answers requests after {timeout_s:g} s (dag.drain_delay, "
            "dag.drain_timeout); wait for it with a longer --timeout, or use `kill`."
        )


def kill(services: Sequence[RunningService]) -> None:
    """End services and their workers at once (SIGKILL). Requests in progress get no answer.

    Raises NotStopped for processes that still run after some seconds.
    """
    with contextlib.ExitStack() as stack:
        workers = {service.pid: service.worker_pids() for service in services}
        every = [*workers, *(pid for pids in workers.values() for pid in pids)]
        handles = {pid: stack.enter_context(_handle(pid)) for pid in every}
        for service in services:
            _signal(service, handles[service.pid], signal.SIGKILL)
            for pid in workers[service.pid]:  # they die with their parent, except workers of another user
                _send_signal(handles[pid], signal.SIGKILL)
        running = _wait(handles, KILL_TIMEOUT_S, "Waiting for killed processes to end")
    for service in services:
        if service.pid not in running:
            sys.stdout.write(f"Killed: {service}, and {len(workers[service.pid])} workers\n")
    if running:
        numbers = ", ".join(map(str, running))
        raise NotStopped(
            f"Process {numbers} was killed and has not ended: it is inside the kernel or a driver."
        )


@contextlib.contextmanager
def _handle(pid: int) -> Iterator[int]:
    """Context manager: open a pidfd of a process, and close it at the end.

    A pidfd is needed because the kernel may reuse the id of an ended process. Yields -1 for a process that
    has ended.
    """
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        yield -1
        return
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _signal(service: RunningService, handle: int, number: signal.Signals) -> None:
    if not runs_module(service.pid, SERVER):
        return  # it has ended
    try:
        _send_signal(handle, number)
    except PermissionError:
        raise NotStopped(
            f"{str(service).capitalize()} belongs to another user; run this as that user, or as root."
        ) from None


def _send_signal(handle: int, number: signal.Signals) -> None:
    if handle >= 0:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(handle, number)


def _wait(handles: dict[int, int], timeout_s: float, doing: str) -> list[int]:
    """Wait until processes end, and return the ids of the processes that still run after `timeout_s`.

    handles: pidfd by process id. doing: text shown on a terminal with the elapsed seconds.
    """
    poll = select.poll()
    running = {handle: pid for pid, handle in handles.items() if handle >= 0}
    for handle in running:
        poll.register(handle, select.POLLIN)
    began = time.monotonic()
    while running and (waited := time.monotonic() - began) < timeout_s:
        _show(f"{doing} ({waited:.0f} s)")
        for handle, _ in poll.poll(min(1.0, timeout_s - waited) * 1000):
            poll.unregister(handle)
            del running[handle]
    _show("")
    return list(running.values())


def _show(progress: str) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{progress}")
        sys.stderr.flush()


def _who_listens(port: int) -> str:
    for pid, command in listeners(port):
        return (
            f"Port {port} is not a service's of this project but process {pid}'s: {command[:COMMAND_CHARS]}."
        )
    return f"Nothing that this user may see listens on port {port}."


def _as_command(arguments: Sequence[str]) -> str:
    return f" but {' '.join(arguments)[:COMMAND_CHARS]}" if arguments else ": it does not run"
