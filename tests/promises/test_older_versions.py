"""A service whose newest model versions are broken starts with the newest version that loads."""

from __future__ import annotations

import json
import signal
from pathlib import Path

from tests.support import onnx_models
from tests.support.service_process import APPS, ServiceProcess, wait_until

INPUT = {"x": "[[1.0, 2.0, 3.0, 6.0]]"}
OPERATOR, UNKNOWN = b"ReduceMean", b"ReduceMoan"


def broken_versions(folder: Path) -> Path:
    """Versions 1 to 3: the files of 3 can't be read, and no engine loads the program of 2."""
    model = onnx_models.versions(folder)
    program = (model / "2" / "model.onnx").read_bytes()
    assert OPERATOR in program
    (model / "2" / "model.onnx").write_bytes(program.replace(OPERATOR, UNKNOWN))
    (model / "3" / "model.onnx").write_bytes(b"no model")
    return model


def test_the_start_falls_back_to_the_newest_version_that_loads(tmp_path: Path) -> None:
    model = broken_versions(tmp_path)
    conf = {"model_config": str(model), "device_type": 0}
    config = {
        "dag": {"is_thread_op": False},
        "op": {"model": {"concurrency": 2, "local_service_conf": conf}},
    }
    with ServiceProcess(APPS / "model.py", config) as service:
        service.wait_until_ready(every_instance=True)
        assert service.predict(INPUT)
        assert json.loads(service.http("/v2/models/model").body)["versions"] == ["1"]
        assert "A newer version than 2 can't be read" in service.log
        assert "Op model: version 3 can't be loaded, so version 2 is served" in service.log
        assert "Op model: version 2 can't be loaded, so version 1 is served" in service.log
        (model / "4").mkdir()
        (model / "4" / "model.onnx").write_bytes((model / "1" / "model.onnx").read_bytes())
        service.process.send_signal(signal.SIGHUP)
        service.wait_for_log("Op model runs what is on disk now, version 4")
        wait_until(lambda: service.predict(INPUT), "version 4 answers")


def test_a_version_that_the_configuration_names_has_no_substitute(tmp_path: Path) -> None:
    conf = {"model_config": str(broken_versions(tmp_path)), "device_type": 0, "model_version": 2}
    config = {"op": {"model": {"local_service_conf": conf}}}
    with ServiceProcess(APPS / "model.py", config, wait=False) as service:
        assert service.exit_code() == 1
        assert "is served" not in service.log
