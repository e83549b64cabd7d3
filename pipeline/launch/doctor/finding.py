"""What one check of the doctor found, and the remedies that several have."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
LOCK = ROOT / "requirements" / "serving.txt"
# Two beginnings of a sentence: a checkout has the lock, an installed package has none.
INSTALL, REINSTALL = (
    (
        "Install the locked environment with make setup",
        "Install the locked environment again: make clean setup",
    )
    if LOCK.is_file()
    else (
        "Install it: pip install paddlewheel",
        "Install it again, with the extras that you use: pip install --force-reinstall paddlewheel",
    )
)


class Status(StrEnum):
    """OK and NOTE let a service run; MISS does not."""

    OK = "ok"
    NOTE = "note"
    MISS = "miss"


@dataclass(frozen=True)
class Finding:
    """One line of the report. `remedy` is one sentence, empty where there is nothing to do."""

    check: str
    status: Status
    found: str
    remedy: str = ""


def ok(check: str, found: str) -> Finding:
    return Finding(check, Status.OK, found)


def note(check: str, found: str, remedy: str = "") -> Finding:
    """Something a service runs without, or slower."""
    return Finding(check, Status.NOTE, found, remedy)


def miss(check: str, found: str, remedy: str) -> Finding:
    """Something without which nothing, or not what config.yml asks for, can be served."""
    return Finding(check, Status.MISS, found, remedy)
