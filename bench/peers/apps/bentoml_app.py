"""BentoML: `bentoml serve bench.peers.apps.bentoml_app:TextClassifier --port 3000`."""

from __future__ import annotations

from typing import Any

import bentoml

from bench.peers.apps.classifier import BATCH, INSTANCES, Classifier


@bentoml.service(workers=INSTANCES, traffic={"timeout": 30})
class TextClassifier:
    def __init__(self) -> None:
        self.classifier = Classifier()

    @bentoml.api(batchable=True, max_batch_size=BATCH, max_latency_ms=1000)
    def classify(self, text: list[str]) -> list[dict[str, Any]]:
        return self.classifier.classify(text)
