"""The trial prediction of `paddlewheel doctor`, in a child process, because Paddle may crash.

`python -m pipeline.launch.doctor.prediction FOLDER` is the child with Paddle. It prints JSON lines: first
facts about the installed Paddle (version, cuda, number of GPUs as cards, tensorrt, tensorrt_found), then
{"device", "prediction"} or {"device", "error"} for each device. With the argument `onnx` it uses ONNX Runtime
and imports no Paddle.
"""

from __future__ import annotations

import json
import os
import site
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.launch.doctor import REINSTALL, Finding, miss, notice, ok
from pipeline.plugins import Library
from pipeline.process.helper_process import HelperFailed, run_helper
from pipeline.process.processes import signal_name

if TYPE_CHECKING:  # the parent also runs without NumPy and msgspec
    import numpy as np

    from pipeline.config.op_section import LocalServiceConf
    from pipeline.models.serving_model import ServingModel

    Matrix = np.ndarray[Any, Any]

TRIAL_TIMEOUT_S = 300.0  # a first import from a slow disk takes minutes
PADDLE = Library("paddle", "paddlewheel[paddle]")
ONNX = "onnx"
TOLERANCE = 1e-4
FEATURES, HIDDEN, CLASSES, ROWS = 8, 16, 3, 2
WIDTH, FACTOR = 4, 2.0
# An ONNX file of opset 17: x [N, 4] times 2 is y.
ONNX_MODEL = bytes.fromhex(
    "08083a5d"  # version of the format; the graph, of 93 bytes:
    "0a130a01780a06666163746f721201792203" + b"Mul".hex() + "1206" + b"scaled".hex()
    + "2a12080110014206" + b"factor".hex() + "4a0400000040"
    + "5a140a0178120f0a0d080112090a0312014e0a020804"
    + "62140a0179120f0a0d080112090a0312014e0a020804"
    + "42040a001011"
)  # fmt: skip


@dataclass(frozen=True)
class Trial:
    """The result of the trial prediction: output of the child process, and why it failed."""

    with_paddle: bool = True  # whether Paddle is installed; if not, ONNX Runtime predicts
    paddle: dict[str, Any] = field(default_factory=dict)  # build of Paddle; empty without Paddle
    predictions: tuple[dict[str, Any], ...] = ()  # one for each device
    failure: str = ""  # empty if the child succeeded


def try_prediction() -> Trial:
    """Predict with a tiny model in a child process, and return the output.

    Uses Paddle if installed, which takes seconds to import, else ONNX Runtime. Never raises for a failing
    child.
    """
    with_paddle = PADDLE.is_installed
    options = [] if with_paddle else [ONNX]
    with tempfile.TemporaryDirectory(prefix="paddlewheel-doctor-") as folder:
        try:
            done = run_helper(
                "pipeline.launch.doctor.prediction",
                folder,
                *options,
                cwd=folder,
                env=_child_environment(folder),
                timeout_s=TRIAL_TIMEOUT_S,
            )
        except HelperFailed as exc:
            return Trial(with_paddle, failure=f"the process {exc.message}")
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    predictions = tuple(line for line in lines if "device" in line)
    paddle: dict[str, Any] = next((line for line in lines if "version" in line), {})
    return Trial(with_paddle, paddle, predictions, _describe_failure(done.status, done.stderr))


def _child_environment(folder: str) -> dict[str, str]:
    """Return the environment variables of the child; `folder` replaces HOME if HOME is not writable.

    Paddle writes to the home folder when it saves a model; serving a model does not write there.
    """
    home = Path(os.path.expanduser("~"))  # noqa: PTH111  # raises nothing
    if os.access(home, os.W_OK | os.X_OK):
        return {**os.environ}
    return {**os.environ, "HOME": folder, "PYTHONUSERBASE": site.getuserbase()}


def check_paddle(trial: Trial) -> Finding:
    """Return the finding about the installed Paddle: its version and build, or why importing it failed."""
    if not trial.with_paddle:
        remedy = f"To serve Paddle models: pip install '{PADDLE.requirement}'"
        return notice("Paddle", "not installed; ONNX models are served without it", remedy)
    if not trial.paddle:
        return miss("Paddle", f"can't be imported: {trial.failure}", f"{REINSTALL}.")
    cuda = trial.paddle["cuda"]
    build = f"built with CUDA {cuda}" if cuda else "CPU build"
    return ok("Paddle", f"{trial.paddle['version']}, {build}")


def check_predictions(trial: Trial) -> list[Finding]:
    """Return a finding for the trial prediction on each device (CPU, GPU).

    A child process without any prediction is a miss as well.
    """
    findings = [
        ok(f"Prediction on the {line['device']}", line["prediction"])
        if "prediction" in line
        else miss(
            f"Prediction on the {line['device']}",
            line["error"],
            f"{REINSTALL}; if it stays, report it with this text.",
        )
        for line in trial.predictions
    ]
    tried = bool(trial.paddle) or not trial.with_paddle
    if tried and trial.failure:
        findings.append(
            miss("Prediction", trial.failure, f"{REINSTALL}; if it stays, report it with this text.")
        )
    if not tried:
        findings.append(miss("Prediction", "not tried", "Mend Paddle first, then run the doctor again."))
    return findings


def _describe_failure(code: int, errors: str) -> str:
    if code == 0:
        return ""
    if code < 0:
        return f"the process died of {signal_name(-code)}"
    lines = [line for line in errors.splitlines() if line.strip()]
    return lines[-1][:400] if lines else f"exit code {code}"


def predict_with_paddle(folder: Path) -> None:
    """In the child: print facts about the installed Paddle, and predict on each device.

    The JSON lines are described in the module docstring. The tiny model is saved in `folder`.
    """
    from pipeline.engines.paddle.paddle_import import inference, paddle

    cards = paddle.device.cuda.device_count() if paddle.is_compiled_with_cuda() else 0
    _print_line(
        version=paddle.__version__,
        cuda=paddle.version.cuda() if paddle.is_compiled_with_cuda() else "",
        cards=cards,
        tensorrt=_dotted(inference.get_trt_compile_version()) if cards else "",
        tensorrt_found=_dotted(inference.get_trt_runtime_version()) if cards else "",
    )
    paddle.set_device("cpu")
    rows = _make_rows(FEATURES)
    model, expected = _save_paddle_model(folder, rows)
    for device in ("CPU", "GPU") if cards else ("CPU",):
        _print_prediction(device, model, rows, expected, through="two layers", by="the layers'")


def _save_paddle_model(folder: Path, rows: Matrix) -> tuple[ServingModel, Matrix]:
    """Save a tiny Paddle model of two linear layers in `folder`.

    Returns the model, and the output that it must have for the input `rows`.
    """
    from pipeline.engines.paddle.paddle_import import paddle
    from pipeline.models.serving_model import ServingModel, Variable

    paddle.seed(1)
    layers = paddle.nn.Sequential(
        paddle.nn.Linear(FEATURES, HIDDEN), paddle.nn.ReLU(), paddle.nn.Linear(HIDDEN, CLASSES)
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


def predict_with_onnx(folder: Path) -> None:
    """In the child: write a tiny ONNX model to `folder`, predict with ONNX Runtime, print a JSON line."""
    import numpy as np

    from pipeline.models.serving_model import ServingModel, Variable

    program = folder / "tiny.onnx"
    program.write_bytes(ONNX_MODEL)
    model = ServingModel(
        directory=folder,
        program=program,
        params=None,
        feeds=(Variable("x", "x", "float32", (-1, WIDTH)),),
        fetches=(Variable("y", "y", "float32", (-1, WIDTH)),),
        format="onnx",
        engine="onnxruntime",
    )
    rows = _make_rows(WIDTH)
    _print_prediction("CPU", model, rows, rows * np.float32(FACTOR), through="an operator", by="NumPy's")


def _make_rows(width: int) -> Matrix:
    import numpy as np

    return np.linspace(-1, 1, ROWS * width, dtype=np.float32).reshape(ROWS, width)


def _print_prediction(
    device: str, model: ServingModel, rows: Matrix, expected: Matrix, *, through: str, by: str
) -> None:
    """Predict `rows` on a device ("CPU" or "GPU"), and print a JSON line with the time or the error.

    expected: the correct output. through, by: words for the printed sentence; they name the model's
    operators, and the source of the expected output.
    """
    from pipeline.config.op_section import LocalServiceConf
    from pipeline.errors import ServingError

    conf = LocalServiceConf.model_validate({"device_type": int(device == "GPU"), "thread_num": 1})
    try:
        spent_ms = _time_prediction(model, conf, rows, expected, by)
    except (ServingError, RuntimeError, ValueError) as exc:
        _print_line(device=device, error=str(exc)[:400])
    else:
        prediction = f"{len(rows)} rows through {through} in {spent_ms:.1f} ms, equal to {by} own answer"
        _print_line(device=device, prediction=prediction)


def _time_prediction(
    model: ServingModel, conf: LocalServiceConf, rows: Matrix, expected: Matrix, by: str
) -> float:
    """Return the time of one inference on `rows` in milliseconds, after a warm-up inference.

    Raises ValueError if the output differs from `expected`. by: source of the expected output, for the
    message.
    """
    import numpy as np

    from pipeline.engines import create_predictor

    predictor = create_predictor(model, conf)
    predictor.run({"x": rows})  # the first run also sets up
    begin = time.perf_counter()
    answer = predictor.run({"x": rows})["y"]
    spent_ms = (time.perf_counter() - begin) * 1000
    predictor.close()
    difference = float(np.abs(answer - expected).max())
    if not difference <= TOLERANCE:  # NaN, too
        raise ValueError(f"the prediction differs from {by} own answer by {difference:g}")
    return spent_ms


def _print_line(**facts: Any) -> None:
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


def _dotted(version: tuple[int, int, int]) -> str:
    return ".".join(map(str, version)) if any(version) else ""


if __name__ == "__main__":
    predict = predict_with_onnx if sys.argv[2:] == [ONNX] else predict_with_paddle
    predict(Path(sys.argv[1]))
