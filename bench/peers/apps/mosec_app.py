"""Mosec: `python -m bench.peers.apps.mosec_app --port 8000`."""

from __future__ import annotations

from typing import Any

from mosec import Server, Worker

from bench.peers.apps.classifier import BATCH, INSTANCES, WAIT_MS, Classifier


class TextClassifier(Worker):
    def __init__(self) -> None:
        self.classifier = Classifier()

    def forward(self, data: list[dict[str, str]]) -> list[dict[str, Any]]:
        return self.classifier.classify([each["text"] for each in data])


if __name__ == "__main__":
    server = Server()
    server.append_worker(TextClassifier, num=INSTANCES, max_batch_size=BATCH, max_wait_time=round(WAIT_MS))
    server.run()
