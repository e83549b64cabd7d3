"""Paddle Serving's import names: they lead to our classes, whatever lies beside the app."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.service_process import APPS, ROOT, ServiceProcess

COMPAT = ROOT / "compat"
ENV = {"PYTHONPATH": f"{ROOT}:{COMPAT}"}

NAMES = """
from paddle_serving_server.web_service import Op, WebService
from paddle_serving_server.pipeline import Op as PipelineOp, RequestOp, ResponseOp
from paddle_serving_server.pipeline import PipelineClient, PipelineServer
from paddle_serving_server.pipeline.operator import Op as OperatorOp, RequestOp, ResponseOp
from paddle_serving_server.pipeline.pipeline_server import PipelineServer as Server
from paddle_serving_server.pipeline.pipeline_client import PipelineClient as Client
from paddle_serving_server.pipeline.channel import ChannelDataEcode, ChannelDataErrcode, ChannelDataType
from paddle_serving_server.pipeline.error_catch import CustomException, CustomExceptionCode, ProductErrCode
from paddle_serving_server.pipeline.proto import pipeline_service_pb2, pipeline_service_pb2_grpc
from paddle_serving_client.io import inference_model_to_serving

from paddle_serving_client.httpclient import HttpClient
from paddle_serving_app.reader.functional import crop, normalize, resize, transpose
import paddle_serving_app, paddle_serving_client, paddle_serving_server
import paddle_serving_server.dag, paddle_serving_server.monitor

import client.pipeline_client
import pipeline

for package in (paddle_serving_app, paddle_serving_client, paddle_serving_server):
    assert package.__version__ == package.version.version_tag == "0.9.0"
assert HttpClient is paddle_serving_client.HttpClient

assert Op is PipelineOp is OperatorOp is pipeline.Op
assert issubclass(WebService, pipeline.WebService)
assert RequestOp is pipeline.RequestOp
assert ResponseOp is pipeline.ResponseOp
assert PipelineServer is Server is pipeline.PipelineServer
assert PipelineClient is Client is client.pipeline_client.PipelineClient
assert ChannelDataErrcode.OK.value == 0 and ChannelDataEcode is ChannelDataErrcode
assert issubclass(CustomException, pipeline.ServingError)
assert CustomExceptionCode.INPUT_PARAMS_ERROR.value == 5000
assert pipeline_service_pb2.Response(err_no=3).err_no == 3
assert "paddle" not in __import__("sys").modules
print(pipeline.__file__)
"""


def run_python(
    code: str, folder: Path, *, path: tuple[Path, ...] = (ROOT, COMPAT)
) -> subprocess.CompletedProcess[str]:
    """A script in `folder`, run as a user runs one."""
    script = folder / "script.py"
    script.write_text(code, "utf-8")
    env = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, path))}
    command = [sys.executable, str(script)]
    # The group of the process must live as long as the script, which writes its id.
    return subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, check=False, start_new_session=True
    )


def test_every_name_leads_to_our_own_class_and_none_to_a_framework(tmp_path: Path) -> None:
    done = run_python(NAMES, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(ROOT / "pipeline" / "__init__.py")


COMMAND_LINE = """
import json, os, sys
from paddle_serving_server.env import CONF_HOME, SERVING_HOME
from paddle_serving_server.util import ArgsParser, dump_pid_file, load_pid_file, pid_is_exist

sys.argv += ["-c", "config.yml", "-o", "op.det.concurrency=2", "dag.is_thread_op=True", "name=ocr"]
print(json.dumps(ArgsParser().parse_args().conf_dict))
dump_pid_file([9292, 8089], "pipline")
dump_pid_file([8089], "again")
(entry,) = load_pid_file(CONF_HOME + "ProcessInfo.json")
print(CONF_HOME == SERVING_HOME + "/", entry["port"], entry["model"], pid_is_exist(entry["pid"]))
for module, name in (("dag", "OpSeqMaker"), ("monitor", "HadoopMonitor"), ("server", "Server")):
    try:
        exec(f"from paddle_serving_server.{module} import {name}")
    except ImportError as exc:
        print(exc)
"""


def test_the_command_line_helpers_do_as_there_and_the_cpp_servers_names_say_what_to_do(
    tmp_path: Path,
) -> None:
    (tmp_path / "config.yml").write_text("op: {det: {concurrency: 1}}\nhttp_port: 9292\n", "utf-8")
    done = run_python(COMMAND_LINE, tmp_path)
    config, entry, *refusals = done.stdout.splitlines()
    assert json.loads(config) == {
        "op": {"det": {"concurrency": 2}},
        "http_port": 9292,
        "dag": {"is_thread_op": True},
        "name": "ocr",
    }, done.stderr
    assert entry == "True [8089] again True"
    builders, monitor, server = refusals
    assert builders.startswith("paddle_serving_server.dag.OpSeqMaker builds Paddle Serving's C++ server")
    assert "copy the new model to a version folder" in monitor
    assert "serve the model with WebService and Op" in server


def test_modules_of_our_names_in_the_app_folder_are_passed_over(tmp_path: Path) -> None:
    for name in ("pipeline.py", "client.py", "convert.py"):
        (tmp_path / name).write_text("raise ImportError('the app folder was imported')\n", "utf-8")
    done = run_python(NAMES, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(ROOT / "pipeline" / "__init__.py")


def test_an_app_module_that_came_first_under_our_name_is_told_of_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "pipeline.py").write_text("", "utf-8")
    done = run_python("import pipeline\nimport paddle_serving_server.web_service\n", tmp_path)
    (sentence,) = [line for line in done.stderr.splitlines() if line.startswith("ImportError")]
    assert f"own module pipeline ({tmp_path / 'pipeline.py'})" in sentence
    assert sentence.endswith("rename it")


@pytest.mark.parametrize("original", ["server", "server-gpu", "client", "app"])
@pytest.mark.parametrize("name", ["paddle_serving_server", "paddle_serving_client", "paddle_serving_app"])
def test_the_real_package_beside_ours_is_refused_in_one_sentence(
    name: str, original: str, tmp_path: Path
) -> None:
    distribution = f"paddle-serving-{original}"
    info = tmp_path / f"{distribution.replace('-', '_')}-0.9.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 0.9.0\n", "utf-8")
    done = run_python(f"import {name}\n", tmp_path)
    (sentence,) = [line for line in done.stderr.splitlines() if line.startswith("ImportError")]
    assert f"{distribution} 0.9.0 is installed beside paddlewheel-compat" in sentence
    assert f"pip uninstall {distribution}" in sentence


def test_the_stub_reaches_a_service_and_the_bare_servicer_says_unimplemented(tmp_path: Path) -> None:
    code = """
import sys
from concurrent.futures import ThreadPoolExecutor
import grpc
from paddle_serving_server.pipeline.proto import pipeline_service_pb2, pipeline_service_pb2_grpc as rpc

def ask(port):
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        request = pipeline_service_pb2.Request(key=["cmd"], value=["post_prod60"])
        return rpc.PipelineServiceStub(channel).inference(request, timeout=60)

answer = ask(%d)
print(answer.err_no, answer.err_msg)
server = grpc.server(ThreadPoolExecutor(1))
rpc.add_PipelineServiceServicer_to_server(rpc.PipelineServiceServicer(), server)
port = server.add_insecure_port("127.0.0.1:0")
server.start()
try:
    ask(port)
except grpc.RpcError as exc:
    print(exc.code().name)
server.stop(None)
"""
    probe = APPS / "wire" / "probe.py"
    with ServiceProcess(probe, name="probe", arguments=["{config}"], env=ENV) as service:
        done = run_python(code % service.rpc_port, tmp_path)
    assert done.stdout.splitlines() == ["60 post product error", "UNIMPLEMENTED"], done.stderr
