"""The peers: how each is started and asked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from bench.peers.dialects import JSON, LISTS, PAIRS, V2, Dialect

_APPS = "bench.peers.apps"


class Peer(NamedTuple):
    """command: of its environment; `{port}` and `{instances}` are filled in.

    wait_ms: how long a batch that is not full waits for more, the best of those tried
        (docs/decisions/peers.md).
    """

    key: str
    name: str
    environment: str
    command: tuple[str, ...]
    path: str
    dialect: Dialect = JSON
    wait_ms: float = 0
    env: Mapping[str, str] = {}
    python39: bool = False


def _python(app: str, *arguments: str) -> tuple[str, ...]:
    return ("python", "-m", f"{_APPS}.{app}", *(arguments or ("{port}",)))


_UVICORN = ("uvicorn", f"{_APPS}.fastapi_app:app", "--port", "{port}", "--workers", "{instances}")
_BENTOML = ("bentoml", "serve", f"{_APPS}.bentoml_app:TextClassifier", "--host", "127.0.0.1")
_TRITON_PATH = "/v2/models/classifier/infer"

PEERS = (
    Peer(
        "fastapi", "FastAPI, one at a time", "fastapi", (*_UVICORN, "--no-access-log"), "/classify",
    ),
    Peer(
        "paddle_serving", "Paddle Serving", "paddle_serving", _python("paddle_serving_app"),
        "/bert/prediction", PAIRS, wait_ms=2, python39=True,
        env={"FLAGS_eager_delete_tensor_gb": "-1"},  # keeps tensors, as our predictor does
    ),
    Peer(
        "mosec", "Mosec", "mosec",
        _python("mosec_app", "--address", "127.0.0.1", "--port", "{port}", "--log-level", "warning"),
        "/inference", wait_ms=1,
    ),
    Peer("litserve", "LitServe", "litserve", _python("litserve_app"), "/predict", wait_ms=2),
    Peer(
        "bentoml", "BentoML", "bentoml", (*_BENTOML, "--port", "{port}"), "/classify", LISTS,
        env={
            "BENTOML_DO_NOT_TRACK": "true",
            "BENTOML_CONFIG_OPTIONS": "api_server.logging.access.enabled=false",
        },
    ),
    Peer(
        "ray", "Ray Serve", "ray", _python("ray_serve_app"), "/classify", wait_ms=5,
        env={"RAY_SERVE_THROUGHPUT_OPTIMIZED": "1"},
    ),
    Peer("triton", "Triton, Python backend", "triton", _python("triton_app"), _TRITON_PATH, V2),
    Peer("pytriton", "PyTriton", "triton", _python("pytriton_app"), _TRITON_PATH, V2),
)  # fmt: skip

LEFT_OUT = {
    "TorchServe": "its workers load PyTorch, whose wheels bring several GB of CUDA libraries; it is archived",
}
