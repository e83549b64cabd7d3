"""Scripts as users write them: what they may do at module level, beside which files, on which ports."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.service_process import APPS, ServiceProcess

FRAMEWORKS = ("paddle", "onnxruntime", "openvino", "torch", "tokenizers")
SHADOWS = ["pipeline.py", "convert.py", "client/__init__.py", "client/protos.py", "numpy_like.py"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the app lies: a script without a guard, a module of its own."""
    folder = tmp_path_factory.mktemp("app")
    shutil.copy(APPS / "unguarded.py", folder / "service.py")
    (folder / "helpers.py").write_text(
        "from client import doubling\n\ndef help_out(text):\n    return doubling.double(text)\n", "utf-8"
    )
    (folder / "client").mkdir()  # a package of the app's, under the name of one of ours
    (folder / "client" / "__init__.py").touch()
    (folder / "client" / "doubling.py").write_text("def double(text):\n    return text * 2\n", "utf-8")
    return folder


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where it is started: a folder with modules of the project's names."""
    folder = tmp_path_factory.mktemp("elsewhere")
    for name in SHADOWS:
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("raise ImportError('the app folder was imported')\n", "utf-8")
    return folder


@pytest.fixture(scope="module")
def unguarded(folder: Path, elsewhere: Path) -> Iterator[ServiceProcess]:
    shutil.copy(elsewhere / "convert.py", folder)
    with ServiceProcess(folder / "service.py", arguments=["+", "--more"], folder=elsewhere) as service:
        yield service


def test_an_unguarded_script_is_served_and_its_classes_pass_between_its_ops(
    unguarded: ServiceProcess, elsewhere: Path
) -> None:
    answer = unguarded.predict({"text": "a b c"})
    assert answer == {
        "joined": "a+b+c",
        "arguments": "+ --more",
        "script": "service.py",
        "name": "__main__",
        "folder": str(elsewhere),
        "helped": "xx",
    }


def test_the_front_is_the_process_that_was_started(unguarded: ServiceProcess) -> None:
    assert unguarded.metric("paddlewheel_resident_bytes", process="front") > 0
    parents = [Path(f"/proc/{pid}/stat").read_text().split()[3] for pid in unguarded.worker_pids()]
    assert parents == [str(unguarded.process.pid)] * 2


def test_the_front_holds_no_framework_and_stays_small(unguarded: ServiceProcess) -> None:
    mapped = Path(f"/proc/{unguarded.process.pid}/maps").read_text()
    assert "httptools" in mapped
    assert [name for name in FRAMEWORKS if f"/{name}/" in mapped] == []
    assert unguarded.metric("paddlewheel_resident_bytes", process="front") < 120e6


@pytest.mark.parametrize("taken", ["http_port", "rpc_port"])
def test_a_second_service_on_a_port_ends_at_once_with_one_sentence(
    unguarded: ServiceProcess, taken: str
) -> None:
    config = {taken: getattr(unguarded, taken)}
    with ServiceProcess(APPS / "echo.py", config, wait=False) as second:
        assert second.exit_code() == 1
        (sentence,) = [line for line in second.log.splitlines() if "ERROR" in line]
        assert f"{taken} {config[taken]} can't be opened" in sentence
        assert "Traceback" not in second.log
    assert unguarded.predict({"text": "a b"})["joined"] == "a+b"


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"op": {"echo": {"batchsize": 3}}}, "batch_size"),
        ({"op": {"echo": {"local_service_conf": {"model_config": "no/such"}}}}, "no/such"),
        ({"http_port": 70000}, "http_port"),
    ],
    ids=["an unknown key", "no model", "a port that is none"],
)
def test_a_mistake_in_the_configuration_ends_it_before_anything_is_served(
    config: dict[str, object], told: str
) -> None:
    with ServiceProcess(APPS / "echo.py", config, wait=False) as service:
        assert service.exit_code() in (1, 2)
        assert told in service.log
        assert "Traceback" not in service.log


@pytest.mark.parametrize("given", ["model", "no/such"])
def test_of_a_relative_model_config_both_folders_are_told(tmp_path: Path, given: str) -> None:
    config = {"op": {"echo": {"local_service_conf": {"model_config": given}}}}
    with ServiceProcess(APPS / "echo.py", config, folder=tmp_path, wait=False) as service:
        assert service.exit_code() == 2
        places = f"{tmp_path} and {service.config_path.parent}"
        assert service.log.endswith(f"; {given!r} was looked for in {places}\n")


def test_what_this_version_cannot_serve_is_refused_at_start_up() -> None:
    remote = {"server_endpoints": ["127.0.0.1:1"], "client_type": "brpc"}
    sections = {"echo": {**remote, "use_encryption_model": True}}
    with ServiceProcess(APPS / "echo.py", {"op": sections}, wait=False) as service:
        assert service.exit_code() == 2
        assert "op.echo.client_type: 'brpc' given; there is no brpc client for this Python" in service.log
        assert "pipeline_grpc for another Pipeline service, grpc for a KServe v2 service" in service.log
        assert "op.echo.use_encryption_model: encrypted models" in service.log


PACKAGED = """
import sys
from pipeline import WebService
from .ops import SeenOp

class PackagedService(WebService):
    def get_pipeline_response(self, read_op):
        return SeenOp("seen", [read_op])

service = PackagedService(name="test")
service.prepare_pipeline_config(sys.argv[1])
service.run_service()
"""
SEEN = """
from pipeline import Op

class SeenOp(Op):
    def preprocess(self, input_dicts, data_id, log_id):
        from app import ops
        return {"package": __package__, "same": str(ops.SeenOp is SeenOp)}, False, None, ""
"""


@pytest.mark.parametrize("name", ["app.web_service", "app"])
def test_a_script_in_a_package_is_started_by_its_name(tmp_path: Path, name: str) -> None:
    app = tmp_path / "app"
    app.mkdir()
    for file, text in (("__init__.py", ""), ("web_service.py", PACKAGED), ("ops.py", SEEN)):
        (app / file).write_text(text, "utf-8")
    shutil.copy(app / "web_service.py", app / "__main__.py")
    with ServiceProcess("-m", arguments=[name, "{config}"], folder=tmp_path) as service:
        assert service.predict({"x": "1"}) == {"package": "app", "same": "True"}


@pytest.mark.parametrize(("module", "kind"), [("threading", "Thread"), ("multiprocessing", "Process")])
def test_a_service_beside_the_rest_of_a_script_is_refused(tmp_path: Path, module: str, kind: str) -> None:
    start = f"from {module} import {kind}\nstarted = {kind}(target=service.run_service)\nstarted.start()\n"
    text = PACKAGED.replace("from .ops", "from ops").replace(
        "service.run_service()\n", start + "started.join()\n"
    )
    (tmp_path / "web_service.py").write_text(text, "utf-8")
    (tmp_path / "ops.py").write_text(SEEN, "utf-8")
    with ServiceProcess(tmp_path, arguments=["{config}"], wait=False) as service:
        service.exit_code()
        assert f"service test is started in a {kind.lower()} of the script's own" in service.log
