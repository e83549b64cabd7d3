"""A configuration of Paddle Inference that tells what it was given."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline.engines.paddle.paddle_import import inference
from pipeline.models.serving_model import ServingModel


class RecordingConfig(inference.Config):  # type: ignore[misc]
    """Paddle's own Config: on a CPU build it checks the arguments of GPU setters, then ignores or refuses."""

    def __init__(self, model: ServingModel) -> None:
        super().__init__(str(model.program), str(model.params))
        self.gpu: tuple[Any, ...] = ()
        self.tensorrt: dict[str, Any] = {}
        self.shapes: tuple[dict[str, list[int]], ...] = ()
        self.cache_folder = ""

    def enable_use_gpu(self, *arguments: Any) -> None:
        super().enable_use_gpu(*arguments)
        self.gpu = arguments

    def enable_tensorrt_engine(self, **arguments: Any) -> None:
        with pytest.raises(RuntimeError, match="please compile with TENSORRT first"):
            super().enable_tensorrt_engine(**arguments)
        self.tensorrt = arguments

    def set_trt_dynamic_shape_info(self, *shapes: dict[str, list[int]]) -> None:
        super().set_trt_dynamic_shape_info(*shapes)
        self.shapes = shapes

    def set_optim_cache_dir(self, folder: str) -> None:
        super().set_optim_cache_dir(folder)
        self.cache_folder = folder
