"""The local response cache: responses in the memory of the front process, bounded by their bytes."""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from pipeline.front.cache.keys import CacheKey
from pipeline.messages.messages import Outcome

ENTRY_BYTES = 512  # of the objects around an entry's key and parts


class CachedOutput(NamedTuple):
    """The encoded response to a request, or the encoded output of a step of an ensemble."""

    outcome: Outcome
    parts: tuple[bytes, ...]

    @property
    def size(self) -> int:
        """Number of bytes in all parts."""
        return sum(map(len, self.parts))


class LocalCache:
    """An in-memory map of responses. Above `max_bytes`, the least recently used responses are evicted."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.used_bytes = 0
        self.evictions = 0
        self._outputs: OrderedDict[CacheKey, CachedOutput] = OrderedDict()

    def __len__(self) -> int:
        """Return the number of responses."""
        return len(self._outputs)

    def find(self, key: CacheKey) -> CachedOutput | None:
        """Return the response for a key, and mark it as most recently used; None if the key is not cached."""
        output = self._outputs.get(key)
        if output is not None:
            self._outputs.move_to_end(key)
        return output

    def store(self, key: CacheKey, output: CachedOutput) -> bool:
        """Store a response, and evict the least recently used responses until all fit.

        Returns False for a response that is larger than the whole cache. Nothing is evicted for it.
        """
        size = _get_size(key, output)
        if size > self.max_bytes:
            return False
        former = self._outputs.pop(key, None)
        if former is not None:
            self.used_bytes -= _get_size(key, former)
        self._outputs[key] = output
        self.used_bytes += size
        while self.used_bytes > self.max_bytes:
            self.used_bytes -= _get_size(*self._outputs.popitem(last=False))
            self.evictions += 1
        return True


def _get_size(key: CacheKey, output: CachedOutput) -> int:
    return len(key.data) + output.size + ENTRY_BYTES
