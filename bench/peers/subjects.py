"""The subjects of a comparison: our service, the peers, and loops without a server, with their commands."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any, NamedTuple

from bench.peers.dialects import INFINITY, JSON, LISTS, PAIRS, V2, Dialect
from bench.peers.figures import TRIAL

_APPS = "bench.peers.apps"


class Ours(NamedTuple):
    """The default service, with differences from its config.yml.

    models: only with these models; empty for all.

    dag, op: other keys of these sections of config.yml. service: other keys of its top level. on_ray: run by
    `paddlewheel ray up` on a cluster of one node.
    """

    key: str
    name: str
    precision: str = "fp32"
    engine: str = "auto"
    models: tuple[str, ...] = ()
    dag: Mapping[str, Any] = {}
    op: Mapping[str, Any] = {}
    service: Mapping[str, Any] = {}
    on_ray: bool = False


class Setting(NamedTuple):
    """Settings of a peer that users tune by hand."""

    batch: int  # maximum number of texts in a predictor batch
    wait_ms: float = 0  # how long a partial batch waits for more texts


NO_SETTING = Setting(0)
BATCHES = (Setting(8), Setting(16), Setting(32))


class Peer(NamedTuple):
    """Other serving software.

    The comparison measures each peer with its fastest setting, chosen for each number of connections.
    """

    key: str
    name: str
    environment: str  # name of its virtual environment; empty for the environment of our service
    command: tuple[str, ...]  # a program of the environment; `{port}` and `{instances}` are filled in
    path: str
    dialect: Dialect = JSON
    settings: tuple[Setting, ...] = BATCHES
    env: Mapping[str, str] = {}
    python39: bool = False


class Loop(NamedTuple):
    """A loop over tokenizer and predictor, with a process for each instance.

    everything: all texts are sorted by length first. Otherwise, a window has as many texts as there are
    connections, as a server would.
    """

    key: str
    name: str
    engine: str
    precision: str = "fp32"
    everything: bool = False


Subject = Ours | Peer | Loop

OURS = Ours("ours", "Paddlewheel")


def _waiting(wait_ms: float) -> tuple[Setting, ...]:
    return tuple(setting._replace(wait_ms=wait_ms) for setting in BATCHES)


def _python(app: str, *arguments: str) -> tuple[str, ...]:
    return ("python", "-m", f"{_APPS}.{app}", *(arguments or ("{port}",)))


def _fastapi(app: str) -> tuple[str, ...]:
    return (
        "uvicorn",
        f"{_APPS}.{app}:app",
        "--port",
        "{port}",
        "--workers",
        "{instances}",
        "--no-access-log",
    )


_MOSEC = ("--address", "127.0.0.1", "--port", "{port}", "--log-level", "warning", "--timeout", "30000")
_BENTOML = ("bentoml", "serve", f"{_APPS}.bentoml_app:TextClassifier", "--host", "127.0.0.1")
_RAY = {"RAY_SERVE_THROUGHPUT_OPTIMIZED": "1"}
_V2_PATH = "/v2/models/classifier/infer"

SUBJECTS: tuple[Subject, ...] = (
    Ours("ours-auto-precision", "Paddlewheel, precision: auto", precision="auto", models=("12x768",)),
    Ours("ours-onnxruntime", "Paddlewheel, engine: onnxruntime", engine="onnxruntime"),
    Ours(
        "ours-processes", "Paddlewheel, engine: onnxruntime, batches of 8, processes", engine="onnxruntime",
        dag={"is_thread_op": False}, op={"batch_size": 8},
    ),
    Ours("ours-shards", "Paddlewheel, 2 shards", service={"shards": 2}),
    Ours("ours-ray", "Paddlewheel on Ray", on_ray=True),
    Peer(
        TRIAL, "trial: processes without a front", "", _python("no_front_app"), "/classify",
        settings=(Setting(8), Setting(16)),
    ),
    Peer("mosec", "Mosec", "mosec", _python("mosec_app", *_MOSEC), "/inference", settings=_waiting(1)),
    Peer(
        "fastapi", "FastAPI, one text at a time", "fastapi", _fastapi("fastapi_app"), "/classify",
        settings=(Setting(1),),
    ),
    Peer(
        "fastapi-batching", "FastAPI with batching", "fastapi", _fastapi("fastapi_batching_app"), "/classify",
    ),
    Peer(
        "litserve", "LitServe", "litserve", _python("litserve_app"), "/predict",
        settings=(Setting(8), *_waiting(2)),
    ),
    Peer(
        "bentoml", "BentoML", "bentoml", (*_BENTOML, "--port", "{port}"), "/classify", LISTS,
        env={
            "BENTOML_DO_NOT_TRACK": "true",
            "BENTOML_CONFIG_OPTIONS": "api_server.logging.access.enabled=false",
        },
    ),
    Peer(
        "mlserver", "MLServer", "mlserver", _python("mlserver_app"), _V2_PATH, V2, settings=_waiting(1)
    ),
    Peer("infinity", "Infinity", "infinity", _python("infinity_app"), "/classify", INFINITY),
    Peer("triton", "Triton, Python backend", "triton", _python("triton_app"), _V2_PATH, V2),
    Peer("pytriton", "PyTriton", "triton", _python("pytriton_app"), _V2_PATH, V2),
    Peer(
        "ray", "Ray Serve", "ray", _python("ray_serve_app"), "/classify",
        settings=(Setting(8), *_waiting(5)), env=_RAY,
    ),
    Peer(
        "ray-haproxy", "Ray Serve, HAProxy mode", "ray", _python("ray_serve_app"), "/classify",
        settings=(Setting(8), *_waiting(5)), env=_RAY | {"RAY_SERVE_ENABLE_HA_PROXY": "1"},
    ),
    Peer(
        "paddle_serving", "Paddle Serving", "paddle_serving", _python("paddle_serving_app"),
        "/bert/prediction", PAIRS, settings=_waiting(2), python39=True,
        env={"FLAGS_eager_delete_tensor_gb": "-1"},  # keeps tensors, as our predictor does
    ),
    Loop("loop-all", "loop, all texts sorted", "onnxruntime", everything=True),
    Loop("loop", "loop, as many texts as connections", "onnxruntime"),
    Loop("loop-openvino", "the same with OpenVINO", "openvino"),
    Loop("loop-openvino-bf16", "the same with OpenVINO in bf16", "openvino", "bf16"),
)  # fmt: skip

LEFT_OUT = {
    "TorchServe": "its workers load PyTorch, whose wheels bring several GB of CUDA libraries; it is archived",
}


def select_subjects(model: str, keys: Container[str]) -> list[Subject]:
    """Return the subjects with these keys that are measured with the model."""
    return [
        subject
        for subject in SUBJECTS
        if subject.key in keys
        and not (isinstance(subject, Ours) and subject.models and model not in subject.models)
    ]
