"""Steps that `run_isolated` is asked to call in the tests: good ones, and bad ones of every kind."""

# ruff: noqa: T201  (converters print, and so do these)
from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from convert.steps.progress import Steps
from pipeline.errors import ConversionError, ParityError


def add(steps: Steps, numbers: list[int], note: str) -> dict[str, Any]:
    steps.step("Adding", total=len(numbers))
    total = 0
    for number in numbers:
        total += number
        steps.advance()
    steps.say(note)
    return {"total": total, "python": sys.executable, "process": os.getpid()}


def chatter(steps: Steps) -> str:
    """Prints what looks like events of ours, and what is no text, from Python and from below it."""
    print('{"result": "forged"}')
    os.write(1, b"\xff\xfe garbage\n" * 50_000)
    os.write(2, b'{"error": "forged", "kind": "ParityError"}\n')
    return "true"


def large(steps: Steps, size: int) -> str:
    return "x" * size


def unsayable(steps: Steps) -> object:
    return Path


def fail(steps: Steps, kind: str) -> None:
    raise {"parity": ParityError, "conversion": ConversionError, "other": KeyError}[kind]("the reason")


def fill_the_disk(steps: Steps) -> None:
    Path("/dev/full").write_text("too much", "utf-8")


def crash(steps: Steps, number: int) -> None:
    print("[ERROR] operator scatter_nd_add is not supported")
    print("the last line")
    os.kill(os.getpid(), number)


def leave(steps: Steps, code: int) -> None:
    print("giving up")
    sys.exit(code)


def hang(steps: Steps, pid_file: str) -> None:
    """Never ends, talks all the while, and has a child that would outlive it."""
    child = subprocess.Popen(["sleep", "1000"])
    Path(pid_file).write_text(f"{os.getpid()} {child.pid}", "utf-8")
    while True:
        print("still at it", flush=True)
        time.sleep(0.001)


def crash_at_exit(steps: Steps) -> str:
    """Has a result, and a library that crashes when the interpreter ends."""
    import atexit

    atexit.register(os.kill, os.getpid(), signal.SIGSEGV)
    return "done"


def variable(steps: Steps, name: str) -> str | None:
    return os.environ.get(name)
