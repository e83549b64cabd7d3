"""Timings: where the time of one request went, as the `Server-Timing` header tells it."""

from __future__ import annotations

import re
import time

from pipeline.process.isolation import isolated

MAX_CHARS = 4096  # gRPC's clients take 8 KiB of metadata
STAGES = ("queue", "preprocess", "process", "postprocess")
_NO_TOKEN = re.compile(r"[^\w!#$%&'*+\-.^`|~]", re.ASCII)  # RFC 9110, section 5.6.2


class Timings:
    """Times of a request by Op, in the order of their answers. Several runs of one Op are added up."""

    __slots__ = ("_began", "_of_ops")

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._of_ops: dict[str, list[float]] = {}

    @isolated(None)
    def add_stages(self, op: str, *stages_s: float) -> None:
        """Seconds of each of STAGES: until the worker could begin, then of the request's batch."""
        sums = self._of_ops.setdefault(op, [0.0] * len(STAGES))
        for number, spent_s in enumerate(stages_s):
            sums[number] += spent_s

    @isolated("")
    def header(self) -> str:
        """Milliseconds: `total;dur=5.1, bert.queue;dur=0.2, bert.preprocess;dur=0.6, ...`.

        What is no token in an Op's name is an underscore; Ops that don't fit in MAX_CHARS are left out.
        """
        entries = [f"total;dur={(time.monotonic() - self._began) * 1000:.3f}"]
        size = len(entries[0])
        for op, sums in self._of_ops.items():
            name = _NO_TOKEN.sub("_", op)
            entry = ", ".join(
                f"{name}.{stage};dur={spent_s * 1000:.3f}"
                for stage, spent_s in zip(STAGES, sums, strict=True)
            )
            size += len(entry) + 2
            if size > MAX_CHARS:
                break
            entries.append(entry)
        return ", ".join(entries)
