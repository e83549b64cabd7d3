"""The result type of `paddlewheel doctor`: a finding with its check, status and remedy."""

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
    """Severity of a finding of `paddlewheel doctor`.

    A service can run with OK and NOTE, but not with MISS.
    """

    OK = "ok"
    NOTE = "note"
    MISS = "miss"


@dataclass(frozen=True)
class Finding:
    """The result of one check of `paddlewheel doctor`, which is one line of the report."""

    check: str  # name of the check
    status: Status
    result: str  # the state of the machine, in words
    remedy: str = ""  # one sentence; empty if there is nothing to do


def ok(check: str, result: str) -> Finding:
    """Return a finding with status OK."""
    return Finding(check, Status.OK, result)


def notice(check: str, result: str, remedy: str = "") -> Finding:
    """Return a finding with status NOTE: services run, but perhaps slower."""
    return Finding(check, Status.NOTE, result, remedy)


def miss(check: str, result: str, remedy: str) -> Finding:
    """Return a finding with status MISS: no service runs, or not on the devices that config.yml names."""
    return Finding(check, Status.MISS, result, remedy)
