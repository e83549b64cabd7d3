"""LitServe: `python -m bench.peers.apps.litserve_app PORT`."""

from __future__ import annotations

import sys
from typing import Any

import litserve

from bench.peers.apps.classifier import BATCH, INSTANCES, WAIT_MS, Classifier


class TextClassifier(litserve.LitAPI):
    def setup(self, device: str) -> None:
        self.classifier = Classifier()

    def decode_request(self, request: dict[str, str]) -> str:
        return request["text"]

    def batch(self, inputs: list[str]) -> list[str]:
        return inputs

    def predict(self, texts: list[str]) -> list[dict[str, Any]]:
        return self.classifier.classify(texts)

    def unbatch(self, output: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return output

    def encode_response(self, output: dict[str, Any]) -> dict[str, Any]:
        return output


if __name__ == "__main__":
    api = TextClassifier(max_batch_size=BATCH, batch_timeout=WAIT_MS / 1e3)
    server = litserve.LitServer(api, accelerator="cpu", workers_per_device=INSTANCES, fast_queue=True)
    server.run(host="127.0.0.1", port=int(sys.argv[1]), num_api_servers=2, generate_client_file=False)
