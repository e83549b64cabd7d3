"""The wheel, installed beside the packages of requirements/onnx.txt alone: it makes and serves a service."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline import __version__
from pipeline.models.serving_model import ServingModel
from tests.support import onnx_models
from tests.support.command_line import refused
from tests.support.free_ports import free_port
from tests.support.locked_packages import link_locked
from tests.support.service_process import PATIENCE_S, ROOT, wait_until

ROW = {"input_ids": [[1, 2, 3]], "token_type_ids": [[0, 0, 0]], "attention_mask": [[1, 1, 1]]}


class Installed:
    """A virtual environment with the wheel, whose commands run as a user's: in a folder of their own."""

    def __init__(self, folder: Path, wheel: Path) -> None:
        self.folder = folder
        self.bin = folder / "env/bin"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "env"], check=True)
        link_locked(ROOT / "requirements/onnx.txt", folder / "env")
        # Offline: what the wheel requires and the lock lacks would be an error.
        pip(folder, f"--python={self.bin / 'python'}", "install", "--no-index", str(wheel))
        self.environment = {
            name: value for name, value in os.environ.items() if not name.startswith("PYTHON")
        } | {"PYTHONVERBOSE": ""}

    def run(self, command: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.bin / command, *map(str, arguments)],
            cwd=self.folder, env=self.environment, capture_output=True, text=True, check=False,
        )  # fmt: skip


def pip(folder: Path, *arguments: str) -> None:
    """The pip of the tests' own environment, away from the sources."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def answer(url: str, body: object = None) -> object:
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(url, data, timeout=PATIENCE_S) as response:
        return json.loads(response.read() or b"null")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """Built from what git has, so that no other file of this folder, and no older build, gets in."""
    folder = tmp_path_factory.mktemp("wheel")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file() and not name.startswith(("tests/", "docs/", "bench/")):
            (folder / "sources" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / "sources" / name)
    pip(folder, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", "dist", "./sources")
    shutil.rmtree(folder / "sources")
    (wheel,) = (folder / "dist").iterdir()
    return Installed(folder, wheel)


@pytest.fixture(scope="module")
def service(installed: Installed) -> Iterator[tuple[str, Path]]:
    """The address of a service that `paddlewheel new` has made and `paddlewheel run` serves, and its log."""
    model, http_port = onnx_models.serving(installed.folder), free_port()
    ports = ("--http-port", str(http_port), "--rpc-port", str(free_port()))
    made = installed.run("paddlewheel", "new", "news", "--model", model, *ports)
    assert made.returncode == 0, made.stderr
    log = installed.folder / "log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            [installed.bin / "paddlewheel", "run", "web_service.py"],
            cwd=installed.folder / "news", env=installed.environment | {"PYTHONVERBOSE": "1"},
            stdin=subprocess.DEVNULL, stdout=file, stderr=file,
        )  # fmt: skip
    url = f"http://127.0.0.1:{http_port}"

    def is_ready() -> bool:
        assert process.poll() is None, log.read_text("utf-8", "replace")[-5000:]
        try:
            answer(f"{url}/v2/health/ready")
        except (urllib.error.URLError, OSError):
            return False
        return True

    try:
        wait_until(is_ready, "it is ready", 2 * PATIENCE_S)
        yield url, log
        stopped = installed.run("paddlewheel", "stop", "--pid", str(process.pid))
        assert (stopped.returncode, process.wait(PATIENCE_S)) == (0, 0), stopped.stderr
    finally:
        process.kill()
        process.wait()


def test_it_answers_over_http_and_v2(service: tuple[str, Path]) -> None:
    url, _ = service
    body = {"key": list(ROW), "value": [json.dumps(rows) for rows in ROW.values()]}
    told = answer(f"{url}/news/prediction", body)
    assert isinstance(told, dict) and told["err_no"] == 0
    assert told["key"] == ["label", "score", "logits"]
    inputs = [
        {"name": name, "datatype": "INT64", "shape": [1, 3], "data": rows} for name, rows in ROW.items()
    ]
    told = answer(f"{url}/v2/models/news/infer", {"inputs": inputs})
    assert isinstance(told, dict)
    assert {output["name"]: output["shape"] for output in told["outputs"]} == {
        "label": [1],
        "score": [1],
        "logits": [1, 3],
    }


def test_it_has_the_page_of_the_documentation_and_the_openapi_document(service: tuple[str, Path]) -> None:
    url, _ = service
    with urllib.request.urlopen(f"{url}/docs", timeout=PATIENCE_S) as page:
        assert page.headers.get_content_type() == "text/html" and len(page.read()) > 1000
    told = answer(f"{url}/openapi.json")
    assert isinstance(told, dict) and told["info"]["version"] == __version__


def test_nothing_of_the_sources_is_imported(service: tuple[str, Path], installed: Installed) -> None:
    """As front and worker tell of each module that they import."""
    told = service[1].read_text("utf-8", "replace")
    assert str(ROOT) not in told
    for module in ("pipeline/front/lifecycle.py", "pipeline/worker/main.py"):
        assert f"{installed.folder}/env/lib/" in told and f"site-packages/{module}" in told


def test_what_is_no_module_is_in_the_wheel_too(installed: Installed) -> None:
    (site_packages,) = installed.folder.glob("env/lib/python*/site-packages")
    for name in (
        "pipeline/py.typed", "pipeline/front/http/docs_page/page.js", "convert/demo/headlines.tsv",
        "client/protos/kserve_v2.proto", "client/protos/pipeline_service_pb2.pyi",
    ):  # fmt: skip
        assert (site_packages / name).is_file(), name


def test_the_version_is_that_of_the_distribution(installed: Installed) -> None:
    told = installed.run("paddlewheel", "--version")
    assert told.stdout == f"paddlewheel {__version__}\n"
    code = "import importlib.metadata as m; print(m.version('paddlewheel'))"
    assert installed.run("python", "-c", code).stdout == f"{__version__}\n"


def test_a_paddle_model_is_refused_at_the_start_with_what_to_install(
    installed: Installed, classifier: ServingModel
) -> None:
    made = installed.run("paddlewheel", "new", "paddled", "--model", classifier.directory)
    assert made.returncode == 0, made.stderr
    told = refused(installed.run("paddlewheel", "run", "paddled/web_service.py"))
    assert told == (
        f"op.paddled.local_service_conf.model_config: {classifier.program} needs Paddle Inference, which is "
        "not installed here: pip install 'paddlewheel[paddle]'\n"
    )
    doctor = installed.run("paddlewheel", "doctor", "--json", "--config", "paddled/config.yml")
    findings = {one["check"]: one for one in json.loads(doctor.stdout)["findings"]}
    assert (doctor.returncode, findings["Model of paddled"]["status"]) == (1, "miss")
    assert "pip install 'paddlewheel[paddle]'" in findings["Model of paddled"]["found"]


def test_the_doctor_misses_nothing_and_predicts_without_paddle(installed: Installed) -> None:
    doctor = installed.run("paddlewheel", "doctor", "--json")
    findings = {one["check"]: one for one in json.loads(doctor.stdout)["findings"]}
    assert doctor.returncode == 0, findings
    assert findings["Paddle"]["status"] == "note"
    assert "pip install 'paddlewheel[paddle]'" in findings["Paddle"]["remedy"]
    assert findings["Prediction on the CPU"]["status"] == "ok"


def test_an_onnx_model_is_converted_and_what_takes_paddle_says_so(
    installed: Installed, tmp_path: Path
) -> None:
    source = onnx_models.onnx_file("classifier")
    converted = installed.run("python", "-m", "convert", "serving", source, tmp_path / "served")
    assert converted.returncode == 0, converted.stderr
    paddle = installed.run("python", "-m", "convert", "demo")
    assert paddle.returncode != 0
    assert "pip install 'paddlewheel[paddle]'" in paddle.stderr
    assert "Traceback" not in paddle.stderr
