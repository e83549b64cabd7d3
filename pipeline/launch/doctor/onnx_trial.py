"""The child process that makes a real prediction with ONNX Runtime, where Paddle is not installed.

`python -m pipeline.launch.doctor.onnx_trial FOLDER` writes one line of JSON, as trial.py does for a device.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from pipeline.launch.doctor.trial_run import tell_prediction
from pipeline.models.serving_model import ServingModel, Variable

WIDTH, FACTOR, ROWS = 4, 2.0, 2
# An ONNX file of opset 17: x [N, 4] times 2 is y.
MODEL = bytes.fromhex(
    "08083a5d"  # version of the format; the graph, of 93 bytes:
    "0a130a01780a06666163746f721201792203" + b"Mul".hex() + "1206" + b"scaled".hex()
    + "2a12080110014206" + b"factor".hex() + "4a0400000040"
    + "5a140a0178120f0a0d080112090a0312014e0a020804"
    + "62140a0179120f0a0d080112090a0312014e0a020804"
    + "42040a001011"
)  # fmt: skip


def main(folder: Path) -> None:
    program = folder / "tiny.onnx"
    program.write_bytes(MODEL)
    model = ServingModel(
        directory=folder,
        program=program,
        params=None,
        feeds=(Variable("x", "x", "float32", (-1, WIDTH)),),
        fetches=(Variable("y", "y", "float32", (-1, WIDTH)),),
        format="onnx",
        engine="onnxruntime",
    )
    rows = np.linspace(-1, 1, ROWS * WIDTH, dtype=np.float32).reshape(ROWS, WIDTH)
    tell_prediction("CPU", model, rows, rows * np.float32(FACTOR), through="an operator", by="NumPy's")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
