"""Scripts written for Paddle Serving, started by either command, with their own modules and loggers."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support import models
from tests.support.service_process import APPS, ROOT, ServiceProcess

WITH_NAMES = {"PYTHONPATH": f"{ROOT}:{ROOT / 'compat'}"}
WITHOUT_NAMES = {"PYTHONPATH": str(ROOT)}
LAUNCHER = "import runpy, sys\nsys.argv[0] = 'pipeline'\nrunpy.run_module('pipeline', run_name='__main__')\n"

SCALE = """
import os
import numpy as np
from paddle_serving_server.web_service import Op, WebService
SCALE = np.float(2)

class ScaleOp(Op):
    def preprocess(self, input_dicts, data_id, log_id):
        return {"y": str(SCALE * np.float(input_dicts["@DAGExecutor"]["x"]))}, False, None, ""

class ScaleService(WebService):
    def get_pipeline_response(self, read_op):
        return ScaleOp(name="scale", input_ops=read_op)

service = ScaleService(name="scale")
service.prepare_pipeline_config(os.environ["SERVICE_CONFIG"])
service.run_service()
"""


def test_python3_web_service_is_enough_though_the_folder_has_modules_of_our_names(tmp_path: Path) -> None:
    shutil.copy(APPS / "wire" / "probe.py", tmp_path / "web_service.py")
    for name in ("pipeline.py", "convert.py", "client.py"):
        (tmp_path / name).write_text("raise ImportError('the app folder was imported')\n", "utf-8")
    with ServiceProcess(tmp_path, name="probe", arguments=["{config}"], env=WITH_NAMES) as service:
        assert service.predict({"cmd": "str2"}) == {"b": "1", "a": "2"}
        assert service.ask({"cmd": "pre_custom_user"})["err_no"] == 5000


def test_pipeline_run_serves_the_same_script_without_the_names_installed(tmp_path: Path) -> None:
    launcher = tmp_path / "launcher.py"
    launcher.write_text(LAUNCHER, "utf-8")
    script = APPS / "wire" / "probe.py"
    arguments = ["run", str(script), "{config}"]
    with ServiceProcess(launcher, name="probe", arguments=arguments, env=WITHOUT_NAMES) as service:
        assert service.predict({"cmd": "two"}) == {"b": "array([1])", "a": "array([2])"}


@pytest.mark.parametrize("names", [WITH_NAMES, WITHOUT_NAMES], ids=["python3", "pipeline run"])
def test_names_of_numpy_1_work_at_module_level_too(tmp_path: Path, names: dict[str, str]) -> None:
    """The script runs once before there is any worker."""
    (tmp_path / "web_service.py").write_text(SCALE, "utf-8")
    (tmp_path / "launcher.py").write_text(LAUNCHER, "utf-8")
    run = names is WITHOUT_NAMES
    script, arguments = ("launcher.py", ["run", "web_service.py"]) if run else ("web_service.py", [])
    with ServiceProcess(tmp_path / script, name="scale", arguments=arguments, env=names) as service:
        assert service.predict({"x": "3"}) == {"y": "6.0"}
        assert "web_service.py:5 uses numpy.float of NumPy 1" in service.log


def test_an_app_that_takes_the_root_logger_over_keeps_it_and_a_numpy_1_name_is_told_once(
    model_folder: Path, tmp_path: Path
) -> None:
    conf = {"client_type": "local_predictor", "model_config": str(models.classifier(model_folder))}
    config = {"op": {"bert": {"local_service_conf": conf}}}
    env = WITH_NAMES | {"LOG_FOLDER": str(tmp_path / "logs")}
    script = APPS / "wire" / "bert.py"
    with ServiceProcess(script, config, name="bert", arguments=["{config}"], env=env) as service:
        first = service.predict({"0": "one text", "1": "and another, which is longer"})
        assert service.predict({"0": "one text", "1": "and another, which is longer"}) == first
        own = (tmp_path / "logs" / "own.log").read_text("utf-8")
        assert (own + service.log).count("uses numpy.int of NumPy 1") == 1
    assert list(first) == ["logits"]
    assert first["logits"].startswith("array([[0.")
    assert "WARNING init_op ran in instance 0" in own
