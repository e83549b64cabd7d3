"""Whether a version of NumPy can run a service, and the remedy where it can't. Imports no NumPy.

Packages of NumPy 1's time install that in the place of NumPy 2.
"""

from __future__ import annotations

from pipeline.errors import ConfigError

REMEDY = (
    "Put that back with python3 -m pip install 'numpy>=2'; where paddlenlp has brought NumPy 1, install it "
    "with --constraint requirements/paddlenlp-constraints.txt"
)


def flaw_of_numpy(version: str) -> str:
    """Why no service can run with this version of NumPy; empty from 2 on."""
    return (
        ""
        if int(version.partition(".")[0]) >= 2
        else f"NumPy {version} is installed; a service needs NumPy 2"
    )


def require_numpy_2(version: str) -> None:
    """Raise ConfigError, with the remedy, for a version of NumPy that can't run a service."""
    if flaw := flaw_of_numpy(version):
        raise ConfigError(f"{flaw}. {REMEDY}.")
