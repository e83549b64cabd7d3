"""Schemathesis sends generated requests to every operation of /openapi.json: valid, almost valid and wrong.

Two of its checks are left out. `positive_data_acceptance`: a schema can't say that a tensor's data fill its
shape. `negative_data_rejection`: Paddle Serving and Triton accept more than their schemas say.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.running import default_config
from tests.dialects.test_text_clients import started as embedding_service
from tests.support.embedding_models import encoder
from tests.support.repository_process import RepositoryProcess
from tests.support.service_process import APPS, ROOT, ServiceProcess
from tests.support.triton_repository import write_recorded

CHECKS = (
    "no_server_fault",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "unsupported_method",
    "allow_header_conformance",
)
PHASES = "examples,coverage,fuzzing"
REPOSITORY_MODELS = ("simple", "identity_string", "optional_in", "params")
SECONDS = 20  # budget of one run; the examples and the coverage phase always end


def default_service(folder: Path) -> ServiceProcess:
    config = default_config()
    config["v2"] = {"model_control": "explicit"}
    arguments = ("--config", "{config}")
    return ServiceProcess(ROOT / "web_service.py", config, arguments=arguments, folder=ROOT, name="bert")


def embeddings(folder: Path) -> ServiceProcess:
    return embedding_service(encoder(folder / "model", {"kind": "embedding"}))


def repository(folder: Path) -> ServiceProcess:
    models = write_recorded(folder)
    for model in models.iterdir():
        if model.name not in REPOSITORY_MODELS:
            shutil.rmtree(model)
    return RepositoryProcess(models, arguments=("--model-control-mode=explicit", "--load-model=*"))


def uploads(folder: Path) -> ServiceProcess:
    return ServiceProcess(APPS / "uploads.py", {"dag": {"http_errors": "status"}})


STARTS = (default_service, embeddings, repository, uploads)


@pytest.mark.parametrize("start", STARTS, ids=lambda start: start.__name__)
def test_no_request_that_the_schema_leads_to_makes_the_server_fail(
    start: Callable[[Path], ServiceProcess], tmp_path: Path
) -> None:
    with start(tmp_path) as service:
        done = subprocess.run(
            [
                sys.executable, "-m", "schemathesis.cli", "run", f"{service.url}/openapi.json",
                "--checks", ",".join(CHECKS), "--phases", PHASES, "--max-time", str(SECONDS),
                "--max-examples", "25", "--generation-deterministic", "--no-color", "--no-shrink",
                "--continue-on-failure",
            ],
            cwd=tmp_path,
            env={**os.environ, "SCHEMATHESIS_HOOKS": "tests.system.server_faults", "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
        assert " passed" in done.stdout
        assert service.process.poll() is None
        assert service.http("/health/live").status == 200
        assert " ERROR " not in service.log
