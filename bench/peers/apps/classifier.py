"""What every peer serves: the demo with the tokenizer, the predictor and the threads that ours has.

Batches are as large as ours may be; they wait for company as long as the peer does best with.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from bench.bare_predictor import BarePredictor
from pipeline.config.config_file import OpConfig, load_config

ROOT = Path(__file__).resolve().parents[3]
CONFIG = ROOT / "config.yml"
MODEL = ROOT / "models" / "demo"
WAIT_MS = float(os.environ.get("PEER_WAIT_MS", "0"))  # that a batch which is not full waits for more


def demo_op() -> OpConfig:
    """What config.yml says of the demo's Op: instances and batch size are those of the peers, too."""
    return load_config(CONFIG).op["bert"]


class Classifier:
    """One instance of the model."""

    def __init__(self) -> None:
        self._predictor = BarePredictor(MODEL, CONFIG)
        self._predictor.logits(["国足客场两球取胜"])

    def classify(self, texts: list[str]) -> list[dict[str, Any]]:
        """Label and confidence of each text, in one run."""
        logits = self._predictor.logits(texts)
        scores = np.exp(logits - logits.max(axis=-1, keepdims=True))
        confidences = (scores.max(axis=-1) / scores.sum(axis=-1)).tolist()
        labels = [self._predictor.labels[number] for number in scores.argmax(axis=-1)]
        return [
            {"label": label, "confidence": confidence}
            for label, confidence in zip(labels, confidences, strict=True)
        ]
