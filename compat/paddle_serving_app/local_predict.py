"""`LocalPredictor`: a serving model run in this process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.config import LocalServiceConf
from pipeline.errors import InvalidInput
from pipeline.predictors import create_predictor
from pipeline.predictors.base import Predictor
from pipeline.serving_model import load_serving_model

GPU, CPU = 1, 0


class LocalPredictor:
    """`load_model_config(folder)`, then `predict(feed, fetch)`."""

    def __init__(self) -> None:
        self._predictor: Predictor | None = None

    def load_model_config(
        self,
        model_path: str | Path,
        use_gpu: bool = False,
        gpu_id: int = 0,
        use_profile: bool = False,
        thread_num: int = 1,
        mem_optim: bool = True,
        ir_optim: bool = False,
        **_: Any,
    ) -> None:
        """Load the model. Raises ConfigError. Other options of the original have no effect."""
        conf = LocalServiceConf.model_validate(
            {
                "client_type": "local_predictor",
                "model_config": str(model_path),
                "device_type": GPU if use_gpu else CPU,
                "devices": str(gpu_id) if use_gpu else "",
                "thread_num": thread_num,
                "mem_optim": mem_optim,
                "ir_optim": ir_optim,
            }
        )
        self._predictor = create_predictor(load_serving_model(Path(model_path)), conf)

    def predict(
        self,
        feed: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        fetch: Sequence[str] | str | None = None,
        batch: bool = False,
        log_id: int = 0,
    ) -> dict[str, Any]:
        """The fetches by alias. Without `batch`, each feed is one row and gets its leading axis here.

        A list of feeds is a list of rows of one shape. Raises InvalidInput for what is missing or unknown.
        """
        if self._predictor is None:
            raise InvalidInput("no model is loaded; call load_model_config('serving_server') first")
        rows = [feed] if isinstance(feed, Mapping) else list(feed)
        if not rows:
            raise InvalidInput("feed is an empty list; give at least one row")
        arrays = {}
        for variable in self._predictor.feeds:
            missing = [row for row in rows if variable.alias not in row]
            if missing:
                raise InvalidInput(f"feed has no {variable.alias!r}, only {', '.join(map(repr, missing[0]))}")
            values = [np.asarray(row[variable.alias], variable.dtype) for row in rows]
            arrays[variable.alias] = np.concatenate(values) if batch else np.stack(values)
        outputs = self._predictor.run(arrays)
        names = [fetch] if isinstance(fetch, str) else fetch
        unknown = [name for name in names or () if name not in outputs]
        if unknown:
            raise InvalidInput(f"fetch has {unknown[0]!r}; the model has {', '.join(outputs)}")
        return {name: outputs[name] for name in names or outputs}
