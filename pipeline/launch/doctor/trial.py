"""The child process that imports Paddle, and makes a tiny model and real predictions with it.

`python -m pipeline.launch.doctor.trial FOLDER` writes one JSON object a line: first what Paddle is (version,
cuda, cards, tensorrt, tensorrt_found), then for each device {"device", "prediction"} or {"device", "error"}.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.engines.paddle.paddle_import import inference, paddle
from pipeline.launch.doctor.trial_run import tell, tell_prediction
from pipeline.models.serving_model import ServingModel, Variable

FEATURES, CLASSES, ROWS = 8, 3, 2


def main(folder: Path) -> None:
    cards = paddle.device.cuda.device_count() if paddle.is_compiled_with_cuda() else 0
    tell(
        version=paddle.__version__,
        cuda=paddle.version.cuda() if paddle.is_compiled_with_cuda() else "",
        cards=cards,
        tensorrt=_dotted(inference.get_trt_compile_version()) if cards else "",
        tensorrt_found=_dotted(inference.get_trt_runtime_version()) if cards else "",
    )
    paddle.set_device("cpu")
    rows = np.linspace(-1, 1, ROWS * FEATURES, dtype=np.float32).reshape(ROWS, FEATURES)
    model, expected = _tiny_model(folder, rows)
    for device in ("CPU", "GPU") if cards else ("CPU",):
        tell_prediction(device, model, rows, expected, through="two layers", by="the layers'")


def _tiny_model(folder: Path, rows: np.ndarray[Any, Any]) -> tuple[ServingModel, np.ndarray[Any, Any]]:
    """Two linear layers as a serving model in `folder`, and what they make of `rows`."""
    paddle.seed(1)
    layers = paddle.nn.Sequential(
        paddle.nn.Linear(FEATURES, 16), paddle.nn.ReLU(), paddle.nn.Linear(16, CLASSES)
    )
    layers.eval()
    expected = layers(paddle.to_tensor(rows)).numpy()
    spec = paddle.static.InputSpec([-1, FEATURES], "float32", "x")
    paddle.jit.save(paddle.jit.to_static(layers, input_spec=[spec]), str(folder / "tiny"))
    program = next(path for path in folder.iterdir() if path.suffix in (".json", ".pdmodel"))
    return ServingModel(
        directory=folder,
        program=program,
        params=folder / "tiny.pdiparams",
        feeds=(Variable("x", "x", "float32", (-1, FEATURES)),),
        fetches=(Variable("fetch_name_0", "y", "float32", (-1, CLASSES)),),  # Paddle's name for the first
    ), expected


def _dotted(version: tuple[int, int, int]) -> str:
    return ".".join(map(str, version)) if any(version) else ""


if __name__ == "__main__":
    main(Path(sys.argv[1]))
