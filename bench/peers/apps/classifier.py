"""The classifier that every peer serves, with the tokenizer, predictor and threads of our service."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from bench.bare_predictor import BarePredictor

CONFIG = Path(__file__).resolve().parents[3] / "config.yml"
MODEL = Path(os.environ.get("PEER_MODEL", "models/demo"))
INSTANCES = int(os.environ.get("PEER_INSTANCES", "2"))
BATCH = int(os.environ.get("PEER_BATCH", "8"))  # maximum number of texts in a predictor batch
WAIT_MS = float(os.environ.get("PEER_WAIT_MS", "0"))  # maximum wait of a partial batch


class Classifier:
    """One instance of the model."""

    def __init__(self) -> None:
        self._predictor = BarePredictor(MODEL, CONFIG)
        self._predictor.logits(["国足客场两球取胜"])

    def classify(self, texts: list[str]) -> list[dict[str, Any]]:
        """Return label and confidence of each text, computed in one run of the model."""
        logits = self._predictor.logits(texts)
        scores = np.exp(logits - logits.max(axis=-1, keepdims=True))
        confidences = (scores.max(axis=-1) / scores.sum(axis=-1)).tolist()
        labels = [self._predictor.labels[number] for number in scores.argmax(axis=-1)]
        return [
            {"label": label, "confidence": confidence}
            for label, confidence in zip(labels, confidences, strict=True)
        ]
