"""Settings of an Op that `paddlewheel tune` tries: which there are, and what each says in config.yml."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import msgspec

BATCHES: tuple[int | str, ...] = (1, 8, 32, "auto")
DELAYS_MS = (0, 1, 2)
MODEL_SECTION = "local_service_conf"
OP_KEYS = ("concurrency", "batch_size", "auto_batching_timeout")
MODEL_KEYS = ("engine", "precision", "thread_num")


class Settings(msgspec.Struct, frozen=True):
    """One way to run an Op.

    instances: `concurrency`. threads: `thread_num`. batch: `batch_size`. delay_ms: `auto_batching_timeout`.
    """

    engine: str
    precision: str
    instances: int
    threads: int
    batch: int | str
    delay_ms: float = 0

    @property
    def name(self) -> str:
        """For tables: as "openvino fp32, 2 x 1, batch 32, delay 0 ms"."""
        shape = f"{self.instances} x {self.threads}"
        return f"{self.engine} {self.precision}, {shape}, batch {self.batch}, delay {self.delay_ms:g} ms"

    def of_op(self) -> dict[str, Any]:
        """The keys of `op.<name>`."""
        return dict(zip(OP_KEYS, (self.instances, self.batch, self.delay_ms), strict=True))

    def of_model(self) -> dict[str, Any]:
        """The keys of `op.<name>.local_service_conf`."""
        return dict(zip(MODEL_KEYS, (self.engine, self.precision, self.threads), strict=True))

    def laid_over(self, section: dict[str, Any]) -> dict[str, Any]:
        """An Op's section of config.yml with these settings in it."""
        return {**section, **self.of_op(), MODEL_SECTION: {**section[MODEL_SECTION], **self.of_model()}}


def parse_settings(section: dict[str, Any], engine: str) -> Settings:
    """What a resolved section of an Op says; `engine` is that of the model where none is named."""
    conf = section[MODEL_SECTION]
    named = conf.get("engine") or engine
    op = [section[key] for key in OP_KEYS]
    return Settings(named, conf["precision"], op[0], conf["thread_num"], op[1], op[2])


def shapes(cores: int) -> list[tuple[int, int]]:
    """(instances, threads of each): as many threads as cores, at most one more, and a lone one of each."""
    sizes = sorted({cores, *(2**power for power in range(cores.bit_length()))})
    full = [(i, t) for i, t in itertools.product(sizes, sizes) if cores / 2 < i * t <= cores]
    return sorted({(1, 1), (cores + 1, 1), *full}, key=lambda shape: (-shape[0], shape[1]))


def of_engines(engines: Sequence[str], precisions: Sequence[str], cores: int) -> list[Settings]:
    """Each engine in each precision, with an instance a core."""
    return [Settings(e, p, cores, 1, 32) for e, p in itertools.product(engines, precisions)]


def of_shapes(best: Settings, cores: int) -> list[Settings]:
    """The same with other instances and threads."""
    return [msgspec.structs.replace(best, instances=i, threads=t) for i, t in shapes(cores)]


def of_batches(best: Settings) -> list[Settings]:
    """The same with other batches."""
    return [msgspec.structs.replace(best, batch=batch) for batch in BATCHES]


def of_delays(best: Settings) -> list[Settings]:
    """The same with other queue delays; a batch of 1 has nothing to wait for."""
    delays = DELAYS_MS if best.batch != 1 else DELAYS_MS[:1]
    return [msgspec.structs.replace(best, delay_ms=delay) for delay in delays]


def most_candidates(engines: int, precisions: int, cores: int, kept: int) -> int:
    """How many a search may try at most, of which `kept` go on from each step to the next."""
    later = len(shapes(cores)) + len(BATCHES) + len(DELAYS_MS)
    return 1 + engines * precisions + kept * later
