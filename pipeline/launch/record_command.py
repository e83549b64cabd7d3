"""`tune --record`: records the requests of a running service as a sample for tuning."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.status import Status

from pipeline.config.report import read_yaml
from pipeline.errors import ConfigError
from pipeline.launch.commands import require_place
from pipeline.launch.stop_command import choose_services
from pipeline.process import recording
from pipeline.process.processes import RunningService

_BEGINS_WITHIN_S = 5.0
_ENDS_WITHIN_S = 5.0
_POLL_S = 0.05


def record(config: Path, to: Path, max_s: float, console: Console) -> int:
    """Record the answered requests of the service on the configuration's HTTP port. Return their number.

    The recording ends at the limits of `recording`, after `max_s`, or at Ctrl-C. Raise ConfigError, and
    NotStopped if no such service runs.
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
    """Yield an event that Ctrl-C or SIGTERM set.

    The signals do not end the process, because the service must not be left recording.
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
    """Wait until the service ends the recording, by itself or at the end of the time."""
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
