"""Ray Serve: `python -m bench.peers.apps.ray_serve_app PORT`."""

from __future__ import annotations

import signal
import sys
from typing import Any

import ray
from ray import serve
from starlette.requests import Request

from bench.peers.apps.classifier import BATCH, INSTANCES, WAIT_MS, Classifier

MAX_WAITING = 256  # per replica: the maximum number of connections


@serve.deployment(num_replicas=INSTANCES, max_ongoing_requests=MAX_WAITING)
class TextClassifier:
    def __init__(self) -> None:
        self.classifier = Classifier()

    @serve.batch(max_batch_size=BATCH, batch_wait_timeout_s=WAIT_MS / 1e3)
    async def classify(self, texts: list[str]) -> list[dict[str, Any]]:
        return self.classifier.classify(texts)

    async def __call__(self, request: Request) -> dict[str, Any]:
        answer: dict[str, Any] = await self.classify((await request.json())["text"])
        return answer


if __name__ == "__main__":
    ray.init(include_dashboard=False, log_to_driver=False)
    serve.start(
        http_options={"host": "127.0.0.1", "port": int(sys.argv[1])},
        logging_config={"enable_access_log": False},
    )
    serve.run(TextClassifier.bind(), route_prefix="/classify")
    signal.sigwait({signal.SIGTERM, signal.SIGINT})
    ray.shutdown()
