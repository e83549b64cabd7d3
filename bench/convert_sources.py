"""One encoder with random weights, as three sources of a conversion. Runs in the conversion environment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from convert.from_torch.torch_model import load_torch_model
from convert.from_torch.torch_steps import onnx_step
from convert.from_torch.twin import paddlenlp_model
from convert.programs.file_model import torch_runner
from convert.steps.progress import SilentSteps, Steps

# Defaults of PaddleNLP's classes that its configuration lacks.
LAYER_NORM_EPS = 1e-12


def three_forms(
    steps: Steps, family: str, head: str, sizes: dict[str, Any], std: float, folder: str, feeds: str
) -> None:
    """Write the folders `torch` (Hugging Face), `paddle` (PaddleNLP) and `onnx` (model.onnx) to `folder`.

    PyTorch's logits for the arrays of the .npz file `feeds` go to logits.npy. Weights are transformers'
    initial ones, or normal with standard deviation `std` unless that is 0.
    """
    place = Path(folder)
    torch.manual_seed(1)
    config = getattr(transformers, f"{family}Config")(**sizes, layer_norm_eps=LAYER_NORM_EPS)
    original = getattr(transformers, family + head)(config)
    for parameter in original.parameters() if std else ():
        torch.nn.init.normal_(parameter, std=std)
    original.save_pretrained(place / "torch")
    model = load_torch_model(str(place / "torch"), "")
    twin = paddlenlp_model(model.model)
    twin.config.hidden_act = config.hidden_act
    twin.save_pretrained(str(place / "paddle"))
    (place / "onnx").mkdir()
    onnx_step(SilentSteps(), str(place / "torch"), "", str(place / "onnx"), [5], 1e-4, 16)
    (logits,) = torch_runner(model.positional, model.feeds)(dict(np.load(feeds)))
    np.save(place / "logits.npy", logits)


def answers(steps: Steps, source: str, input_spec: str, feeds: str) -> list[Any]:
    """Return PyTorch's only output for the arrays of the .npz file `feeds`."""
    model = load_torch_model(source, input_spec)
    (output,) = torch_runner(model.positional, model.feeds)(dict(np.load(feeds)))
    return output.tolist()
