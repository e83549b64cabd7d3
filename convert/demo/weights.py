"""The trained weights of the demo, stored with the project so that a service runs without training."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import paddle

from convert.demo.bert_classifier import BertClassifier, BertSize
from convert.demo.headlines import LABELS
from pipeline.errors import ConversionError

_REMEDY = "restore it from the repository, or train again with `paddlewheel convert demo --train FILE`."


def save_weights(model: Any, path: Path) -> None:
    """Write the parameters of a BertClassifier by name, in half precision, which changes no accuracy."""
    arrays = {name: value.numpy().astype(np.float16) for name, value in model.state_dict().items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        np.savez_compressed(file, allow_pickle=False, **arrays)


def load_model(path: Path, vocabulary: Sequence[str]) -> Any:
    """Load a BertClassifier in evaluation mode with the weights of `save_weights`, as float32.

    Raises ConversionError for a file that is damaged or of a model of another shape.
    """
    model = BertClassifier(BertSize(len(vocabulary), len(LABELS)))
    parameters = model.state_dict()
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            arrays = {name: stored[name].astype(np.float32) for name in stored.files}
    except (OSError, ValueError, zipfile.BadZipFile) as exc:
        raise ConversionError(f"{path} can't be read ({exc}); {_REMEDY}") from exc
    shapes = {name: tuple(value.shape) for name, value in parameters.items()}
    if {name: array.shape for name, array in arrays.items()} != shapes:
        raise ConversionError(f"{path} holds the weights of another model than today's; {_REMEDY}")
    for name, array in arrays.items():
        parameters[name].set_value(paddle.to_tensor(array))
    model.eval()
    return model
