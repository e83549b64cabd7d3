"""Mosec: `python -m bench.peers.apps.mosec_app --port 8000`."""

from __future__ import annotations

from typing import Any

from mosec import Server, Worker

from bench.peers.apps.classifier import WAIT_MS, Classifier, demo_op


class TextClassifier(Worker):
    def __init__(self) -> None:
        self.classifier = Classifier()

    def forward(self, data: list[dict[str, str]]) -> list[dict[str, Any]]:
        return self.classifier.classify([each["text"] for each in data])


if __name__ == "__main__":
    op = demo_op()
    server = Server()
    server.append_worker(
        TextClassifier, num=op.concurrency, max_batch_size=op.batch_size, max_wait_time=round(WAIT_MS)
    )
    server.run()
