"""LocalClient: a predictor with the interface of Paddle Serving's client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pipeline.engines.base import Predictor
from pipeline.engines.feeds import LOD_SUFFIX
from pipeline.engines.fetches import find_fetch
from pipeline.errors import InvalidInput


class LocalClient:
    """The client of a local model: `self.client` of an Op, and the base of `LocalPredictor`.

    `feed_names_` and `fetch_names_` are the model's aliases. `feed_shapes_` has no batch axis.
    """

    def __init__(self, predictor: Predictor) -> None:
        self._predictor = predictor
        self.feed_names_ = [variable.alias for variable in predictor.feeds]
        self.fetch_names_ = [variable.alias for variable in predictor.fetches]
        self.feed_shapes_ = {variable.alias: list(variable.shape[1:]) for variable in predictor.feeds}

    def predict(
        self,
        feed: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        fetch: Sequence[str] | str | None = None,
        batch: bool = False,
        log_id: int = 0,
    ) -> dict[str, Any]:
        """Run the model, and return the fetches named by `fetch`, or all.

        Without `batch`, each feed is a row and gets a batch axis. A list of feeds is a list of rows of the
        same shape. A ragged feed "x" needs `batch`, and its offsets as "x.lod". Raises InvalidInput for
        missing feeds and unknown fetches, and the predictor's errors.
        """
        rows = [feed] if isinstance(feed, Mapping) else list(feed)
        if not rows:
            raise InvalidInput("feed is an empty list; give at least one row")
        arrays = {}
        for variable in self._predictor.feeds:
            missing = [row for row in rows if variable.alias not in row]
            if missing:
                raise InvalidInput(f"feed has no {variable.alias!r}, only {', '.join(map(repr, missing[0]))}")
            values = [np.asarray(row[variable.alias], variable.numpy_dtype) for row in rows]
            arrays[variable.alias] = np.concatenate(values) if batch else np.stack(values)
            lod = variable.alias + LOD_SUFFIX
            if len(rows) == 1 and lod in rows[0]:
                arrays[lod] = np.asarray(rows[0][lod])
        outputs = self._predictor.run(arrays)
        fetched: dict[str, Any] = {}
        for name in ([fetch] if isinstance(fetch, str) else fetch) or self.fetch_names_:
            selected = find_fetch(self._predictor.fetches, name)
            if selected is None:
                raise InvalidInput(f"fetch has {name!r}; the model has {', '.join(self.fetch_names_)}")
            fetched[name] = outputs[selected.alias]
            if selected.alias + LOD_SUFFIX in outputs:
                fetched[name + LOD_SUFFIX] = outputs[selected.alias + LOD_SUFFIX]
        return fetched
