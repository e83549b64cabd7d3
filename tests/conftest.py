"""What every test may use: the project's folder, small models, a port that nobody answers."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.models.serving_model import ServingModel, load_serving_model
from tests.support import models, onnx_models
from tests.support.service_process import APPS, ServiceProcess

ROOT = Path(__file__).resolve().parent.parent

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a shell's background; children inherit that
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A race of instances takes seconds, and its result depends on other work on the machine.
os.environ["PADDLEWHEEL_AUTO_SECONDS"] = "0"


@pytest.fixture(scope="session")
def root() -> Path:
    """The folder of the project."""
    return ROOT


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where `models` builds each model once for all tests, which only read it."""
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="session")
def classifier(model_folder: Path) -> ServingModel:
    """input_ids, token_type_ids, attention_mask -> logits of 3 labels; all may be padded."""
    return load_serving_model(models.classifier(model_folder))


@pytest.fixture(scope="session")
def pdmodel(model_folder: Path) -> ServingModel:
    """The classifier as an old .pdmodel program, without token_type_ids."""
    return load_serving_model(models.classifier_pdmodel(model_folder))


@pytest.fixture(scope="session")
def triton(model_folder: Path) -> Iterator[Callable[[str], ServiceProcess]]:
    """The running stand-in for one of Triton's models, each started once."""
    running: dict[str, ServiceProcess] = {}
    with contextlib.ExitStack() as stack:

        def service(model: str) -> ServiceProcess:
            if model not in running:
                config: dict[str, Any] = {"v2": {"model_control": "none"}}
                if model == "versions":
                    conf = {"model_config": str(onnx_models.versions(model_folder)), "device_type": 0}
                    config["op"] = {"model": {"local_service_conf": conf}}
                started = ServiceProcess(APPS / "triton.py", config, name=model, env={"MODEL": model})
                running[model] = stack.enter_context(started)
            return running[model]

        yield service


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port that is bound and not listened on: connecting to it is refused."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]
