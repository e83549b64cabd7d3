"""The child process that imports Paddle, and makes a tiny model and real predictions with it.

`python -m pipeline.launch.doctor.trial FOLDER` writes one JSON object a line: first what Paddle is (version,
cuda, cards, tensorrt, tensorrt_found), then for each device {"device", "prediction"} or {"device", "error"}.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.config.op_section import LocalServiceConf
from pipeline.engines import create_predictor
from pipeline.engines.paddle.paddle_import import inference, paddle
from pipeline.errors import ServingError
from pipeline.models.serving_model import ServingModel, Variable

TOLERANCE = 1e-4
FEATURES, CLASSES, ROWS = 8, 3, 2


def main(folder: Path) -> None:
    cards = paddle.device.cuda.device_count() if paddle.is_compiled_with_cuda() else 0
    _tell(
        version=paddle.__version__,
        cuda=paddle.version.cuda() if paddle.is_compiled_with_cuda() else "",
        cards=cards,
        tensorrt=_dotted(inference.get_trt_compile_version()) if cards else "",
        tensorrt_found=_dotted(inference.get_trt_runtime_version()) if cards else "",
    )
    paddle.set_device("cpu")
    rows = np.linspace(-1, 1, ROWS * FEATURES, dtype=np.float32).reshape(ROWS, FEATURES)
    model, expected = _tiny_model(folder, rows)
    for device, device_type in {"CPU": 0, "GPU": 1}.items():
        if device == "GPU" and not cards:
            continue
        try:
            _tell(device=device, prediction=_predict(model, device_type, rows, expected))
        except (ServingError, RuntimeError, ValueError) as exc:
            _tell(device=device, error=str(exc)[:400])


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


def _predict(
    model: ServingModel, device_type: int, rows: np.ndarray[Any, Any], expected: np.ndarray[Any, Any]
) -> str:
    conf = LocalServiceConf.model_validate({"device_type": device_type, "thread_num": 1})
    predictor = create_predictor(model, conf)
    predictor.run({"x": rows})  # the first run also sets up
    begin = time.perf_counter()
    answer = predictor.run({"x": rows})["y"]
    spent_ms = (time.perf_counter() - begin) * 1000
    predictor.close()
    difference = float(np.abs(answer - expected).max())
    if not difference <= TOLERANCE:  # NaN, too
        raise ValueError(f"the prediction differs from the layers' own answer by {difference:g}")
    return f"{ROWS} rows through two layers in {spent_ms:.1f} ms, equal to the layers' own answer"


def _dotted(version: tuple[int, int, int]) -> str:
    return ".".join(map(str, version)) if any(version) else ""


def _tell(**facts: Any) -> None:
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
