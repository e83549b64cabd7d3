"""The package is upgraded under a running service: workers serve on, and no request is blamed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from pipeline.messages.frames import DEFINITIONS, PACKAGE_CHANGED
from pipeline.messages.messages import KINDS
from tests.support.service_process import APPS, ROOT, ServiceProcess

READY = "paddlewheel_op_ready_instances"


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A folder with a copy of the package, which a test may change."""
    folder = tmp_path / "site"
    shutil.copytree(ROOT / "pipeline", folder / "pipeline", ignore=shutil.ignore_patterns("__pycache__"))
    return folder


@pytest.fixture
def service(package: Path) -> Iterator[ServiceProcess]:
    config = {"dag": {"is_thread_op": False}, "op": {"echo": {"concurrency": 2}}}
    with ServiceProcess(APPS / "echo.py", config, env={"PYTHONPATH": str(package)}) as running:
        running.wait_until_ready(every_instance=True)
        yield running


def test_workers_of_another_version_refuse_to_serve_and_running_ones_go_on(
    service: ServiceProcess, package: Path, tmp_path: Path
) -> None:
    definitions = package / "pipeline" / "messages" / "messages.py"
    text = definitions.read_text("utf-8")
    changed = text.replace("    index: int ", "    epoch: int\n    index: int ")
    assert changed != text
    definitions.write_text(changed, "utf-8")
    service.kill_worker()
    service.wait_for_log(f"Worker echo.0 did not start: {PACKAGE_CHANGED}\n", times=2)
    for number in range(20):
        assert service.predict({"number": str(number)})["doubled"] == str(2 * number)
    assert service.metric(READY) == 1
    report = examine(package, tmp_path)
    assert f"process {service.process.pid}" in report
    assert "the installed package has changed since its start" in report
    assert "Restart the service" in report
    service.kill_worker()
    assert service.exit_code() == 1
    assert f"Op echo can't be started: {PACKAGE_CHANGED}" in service.log
    assert "died under this request" not in service.log


def examine(package: Path, folder: Path) -> str:
    """The lines of the doctor, to whom Paddle is missing: trying it takes seconds."""
    (folder / "paddle.py").write_text("raise ImportError('not tried here')\n", "utf-8")
    (folder / "rich.py").write_text("raise ImportError('plain lines')\n", "utf-8")
    command = [sys.executable, "-m", "pipeline", "doctor"]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (package, folder)))}
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False).stdout


def test_the_version_covers_every_type_that_a_message_holds() -> None:
    modules = {module.__name__ for module in DEFINITIONS}
    types = find_types(msgspec.inspect.multi_type_info(KINDS))
    assert {"CallMessage", "Refusal", "RequestOptions", "ModelCard", "TensorSpec"} <= {
        each.__name__ for each in types
    }
    assert {each.__module__ for each in types} <= modules


def find_types(description: object) -> set[type]:
    """The classes of ours in a description of msgspec's, which may be recursive."""
    classes, seen, left = set[type](), set[int](), [description]
    while left:
        part = left.pop()
        if isinstance(part, type) and part.__module__.startswith("pipeline."):
            classes.add(part)
        if id(part) in seen:
            continue
        seen.add(id(part))
        if isinstance(part, tuple | list):
            left.extend(part)
        elif isinstance(part, msgspec.inspect.Type | msgspec.inspect.Field):
            left.extend(getattr(part, name) for name in part.__struct_fields__)
    return classes
