"""`paddlenlp.metrics`: metrics that services and their evaluations use, for NumPy arrays and Paddle tensors.

Source: paddlenlp 2.8.1, metrics (Apache-2.0).
"""

from __future__ import annotations

from typing import Any

from .bleu import BLEU
from .chunk import ChunkEvaluator
from .distinct import Distinct
from .glue import AccuracyAndF1, Mcc, MultiLabelsMetric, PearsonAndSpearman
from .mrr import MRR
from .perplexity import Perplexity
from .rouge import Rouge1, Rouge2, RougeL, RougeN
from .sighan import CorrectionF1, DetectionF1
from .span import SpanEvaluator

__all__ = [
    "BLEU",
    "MRR",
    "AccuracyAndF1",
    "ChunkEvaluator",
    "CorrectionF1",
    "DetectionF1",
    "Distinct",
    "Mcc",
    "MultiLabelsMetric",
    "PearsonAndSpearman",
    "Perplexity",
    "Rouge1",
    "Rouge2",
    "RougeL",
    "RougeN",
    "SpanEvaluator",
]


def __getattr__(name: str) -> Any:
    from paddlenlp_shims.places import sentence

    raise AttributeError(sentence(f"{__name__}.{name}"))
