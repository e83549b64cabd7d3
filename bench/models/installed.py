"""Versions of packages in the conversion environment."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import metadata

from convert.steps.progress import Steps


def versions(steps: Steps, names: Sequence[str]) -> dict[str, str]:
    return {name: metadata.version(name) for name in names}
