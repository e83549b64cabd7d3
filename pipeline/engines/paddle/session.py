"""Session: a loaded Paddle program and the handles of its feeds and fetches."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from pipeline.engines.feeds import LOD_SUFFIX, Array


class Session:
    """Runs a `paddle.inference.Predictor`.

    feeds, fetches: the program's names by alias. ragged: the feeds that have offsets beside them.
    has_sequences: whether fetches may have offsets, too.
    """

    def __init__(
        self,
        predictor: Any,
        feeds: Mapping[str, str],
        fetches: Mapping[str, str],
        *,
        ragged: Collection[str] = (),
        has_sequences: bool = False,
    ) -> None:
        self._predictor = predictor
        self._names = feeds, fetches
        self._ragged = ragged
        self._has_sequences = has_sequences
        # A handle stays valid as long as the predictor, and looking it up costs as much as a small copy.
        self._inputs = {alias: predictor.get_input_handle(name) for alias, name in feeds.items()}
        self._outputs = {alias: predictor.get_output_handle(name) for alias, name in fetches.items()}

    def clone(self) -> Session:
        """A session with the same weights and tensors of its own."""
        feeds, fetches = self._names
        return Session(
            self._predictor.clone(), feeds, fetches, ragged=self._ragged, has_sequences=self._has_sequences
        )

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Arrays by alias in and out; the offsets of sequences as int32 under the alias and ".lod".

        Raises whatever Paddle raises.
        """
        for alias, handle in self._inputs.items():
            handle.copy_from_cpu(feeds[alias])
            if alias in self._ragged:
                handle.set_lod([feeds[alias + LOD_SUFFIX].tolist()])
        self._predictor.run()
        fetches = {}
        for alias, handle in self._outputs.items():
            fetches[alias] = handle.copy_to_cpu()
            if self._has_sequences and (lod := handle.lod()):
                fetches[alias + LOD_SUFFIX] = np.array(lod[0], np.int32)
        return fetches
