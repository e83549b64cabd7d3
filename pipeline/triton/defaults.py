"""Defaults: what models are given that their configurations leave out, as `--backend-config` says it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from pipeline.errors import ConfigError

_MAX_BATCH_SIZE, _THREADS = "default-max-batch-size", "intra_op_thread_count"
DEFAULT_MAX_BATCH_SIZE = 4  # as Triton's
DEFAULT_THREADS = 2


class Defaults(NamedTuple):
    """settings: backend, empty for all, name and value."""

    settings: tuple[tuple[str, str, int], ...] = ()

    def max_batch_size(self, backend: str) -> int:
        """Rows of a model that takes any number of them; 0: it is given no batches."""
        return self._get_value(backend, _MAX_BATCH_SIZE, DEFAULT_MAX_BATCH_SIZE)

    def threads(self, backend: str) -> int:
        """Threads of one run."""
        return self._get_value(backend, _THREADS, DEFAULT_THREADS) or DEFAULT_THREADS

    def _get_value(self, backend: str, name: str, otherwise: int) -> int:
        told = {of: value for of, known, value in self.settings if known == name}
        return told.get(backend, told.get("", otherwise))


NO_DEFAULTS = Defaults()


def parse_defaults(given: Sequence[str]) -> tuple[Defaults, list[str]]:
    """What `--backend-config=BACKEND,NAME=VALUE` and `=NAME=VALUE` say, and a line for each that has no
    effect.

    Raises ConfigError.
    """
    read = list(map(_split_setting, given))
    settings = [
        (backend, name, int(value)) for backend, name, value in read if name in (_MAX_BATCH_SIZE, _THREADS)
    ]
    return Defaults(tuple(settings)), list(_without_effect(read))


def _split_setting(text: str) -> tuple[str, str, str]:
    backend, _, setting = text.rpartition(",")
    name, equals, value = setting.partition("=")
    if not name or not equals:
        raise ConfigError(
            f"--backend-config={text}: write BACKEND,NAME=VALUE, as in onnxruntime,{_MAX_BATCH_SIZE}=8"
        )
    if name in (_MAX_BATCH_SIZE, _THREADS) and not value.isdecimal():
        raise ConfigError(f"--backend-config={text}: {name} is a number, 0 or more")
    return backend, name, value


def _without_effect(read: Sequence[tuple[str, str, str]]) -> Iterator[str]:
    for backend, name, _ in read:
        if name not in (_MAX_BATCH_SIZE, _THREADS):
            of = f"{backend},{name}" if backend else name
            yield (
                f"--backend-config={of} has no effect: of a backend's settings {_MAX_BATCH_SIZE} and "
                f"{_THREADS} are known here"
            )
