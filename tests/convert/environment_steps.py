"""Steps that tell what the conversion environment holds."""

from __future__ import annotations

import importlib
import sys
from importlib import metadata
from typing import Any

from convert.progress import Steps


def installed(steps: Steps) -> dict[str, Any]:
    packages = [(d.metadata["Name"], d.version) for d in metadata.distributions()]
    return {"prefix": sys.prefix, "packages": packages}


def imported(steps: Steps, module: str) -> str:
    return importlib.import_module(module).__name__


def paddlenlp_checkpoint(
    steps: Steps, family: str, head: str, sizes: dict[str, Any], folder: str, feeds: str
) -> None:
    """Save a small PaddleNLP model to `folder`, and its logits for the arrays of `feeds` as logits.npy."""
    import numpy as np
    import paddle
    from paddlenlp import transformers

    paddle.seed(3)
    config = getattr(transformers, f"{family}Config")(**sizes)
    model = getattr(transformers, f"{family}For{head}Classification")(config)
    model.eval()
    for weight in model.parameters():  # as far from their initial values as trained ones are
        weight.set_value(weight + 0.1 * paddle.randn(weight.shape))
    model.save_pretrained(folder)
    arrays = dict(np.load(feeds))
    logits = model(**{name: paddle.to_tensor(array) for name, array in arrays.items()})
    np.save(f"{folder}/logits.npy", logits.numpy())
