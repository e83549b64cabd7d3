"""Services as docker/compose.yml runs them, from the images that docker/ makes, without docker."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.process.processes import SERVER, runs_module
from tests.support import onnx_models
from tests.support.command_line import paddlewheel
from tests.support.container import UID, Container, Image, image
from tests.support.container_files import instructions
from tests.support.followed_documents import blocks_of
from tests.support.service_process import APPS, PATIENCE_S, ROOT, is_running, wait_until
from tests.support.triton_repository import write_model

ASK = """
import json, sys, urllib.request, grpc
from client.protos.pipeline_service_pb2 import Request, Response
service, inputs = json.loads(sys.argv[1])
body = json.dumps({"key": list(inputs), "value": list(inputs.values())}).encode()
http = json.load(urllib.request.urlopen(f"http://127.0.0.1:18082/{service}/prediction", body, timeout=60))
channel = grpc.insecure_channel("127.0.0.1:8088")
call = channel.unary_unary("/baidu.paddle_serving.pipeline_serving.PipelineService/inference")
request = Request(name=service, key=list(inputs), value=list(inputs.values()))
rpc = Response.FromString(call(request.SerializeToString(), timeout=60))
by_http = [http["err_no"], http["key"], http["value"]]
print(json.dumps([by_http, [rpc.err_no, list(rpc.key), list(rpc.value)]]))
"""
TEXT = {"0": "国足客场两球取胜，提前一轮出线"}
OPEN_CONTROL = (
    "Every client of http_port and rpc_port may load and unload models: set security.api_keys (--api-keys), "
    "or v2.model_control: none (--model-control-mode=none)"
)
SIGNALLED = """
import os, signal
from pipeline import WebService
WebService()
os.kill(os.getpid(), signal.SIGTERM)
print("SIGTERM did nothing")
"""

POST = """
import sys, urllib.request
print(urllib.request.urlopen(sys.argv[1], sys.argv[2].encode(), timeout=60).read().decode())
"""
CALLS = """
import json, sys, urllib.error, urllib.request, grpc
http_port, grpc_port, calls = json.loads(sys.argv[1])
def status(method, path, body):
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"} if data else {}
    call = urllib.request.Request(f"http://127.0.0.1:{http_port}{path}", data, headers, method=method)
    try:
        with urllib.request.urlopen(call, timeout=60) as answer:
            return [answer.status, answer.read().decode()]
    except urllib.error.HTTPError as exc:
        return [exc.code, exc.read().decode()]
answers = [status(*call) for call in calls]
channel = grpc.insecure_channel(f"127.0.0.1:{grpc_port}")
live = channel.unary_unary("/inference.GRPCInferenceService/ServerLive")
print(json.dumps([answers, live(b"", timeout=60) == b"\\x08\\x01"]))
"""
HOSTS = dict(
    re.findall(
        r"^\| ([\w ]+) \| `(tritonserver [^`]+)` \|", (ROOT / "docs/triton.md").read_text("utf-8"), re.M
    )
)
DOUBLES = """
import triton_python_backend_utils as utils
class TritonPythonModel:
    def execute(self, requests):
        inputs = [utils.get_input_tensor_by_name(request, "x").as_numpy() for request in requests]
        return [utils.InferenceResponse([utils.Tensor("y", x * 2)]) for x in inputs]
"""
DOUBLED = """
backend: "python"
input { name: "x" data_type: TYPE_FP32 dims: [ 2 ] }
output { name: "y" data_type: TYPE_FP32 dims: [ 2 ] }
"""
PAGE = blocks_of(ROOT / "docs/deploy.md")
FILES = {block.title: block.text for block in PAGE if block.title}


def answers(container: Container, service: str, inputs: dict[str, str]) -> tuple[list[object], list[object]]:
    """Those over HTTP and over gRPC to one request: err_no, keys and values."""
    http, rpc = json.loads(container.python(ASK, json.dumps([service, inputs])).splitlines()[-1])
    return http, rpc


def settings(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text("utf-8").splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


@pytest.fixture(scope="module")
def built() -> Iterator[Image]:
    with image() as made:
        yield made


@pytest.fixture(scope="module")
def running(built: Image) -> Iterator[Container]:
    """Tells of each file that Python could not write, too: it is silent about them otherwise."""
    with Container(built, {"PYTHONVERBOSE": "1"}) as container:
        container.wait_until_healthy()
        # One process for both instances, or one each, as the engine wants it that `auto` has chosen.
        wait_until(lambda: 0 < ready(container) == len(container.worker_pids()), "each worker is ready")
        yield container


def ready(container: Container) -> int:
    """How many workers have become ready so far."""
    return container.log.count("is ready (pid")


def test_it_answers_at_both_endpoints(running: Container) -> None:
    http, rpc = answers(running, "bert", TEXT)
    assert http == rpc
    assert http[0] == 0


def test_its_processes_have_no_capability_and_gain_none(running: Container) -> None:
    for pid in (running.pid, *running.worker_pids()):
        told = settings(pid)
        assert {told[f"Cap{kind}"] for kind in ("Inh", "Prm", "Eff", "Bnd", "Amb")} == {"0" * 16}
        assert told["NoNewPrivs"] == "1"
    assert f"Uid:\t{UID}\t{UID}\t{UID}\t{UID}\n" in running.run("cat", "/proc/1/status").printed


def test_memory_is_taken_from_workers_before_the_front(running: Container) -> None:
    front, *workers = (
        int(Path(f"/proc/{pid}/oom_score_adj").read_text()) for pid in (running.pid, *running.worker_pids())
    )
    assert min(workers) > front


def test_its_files_can_not_be_written_and_nothing_wants_to(running: Container) -> None:
    for folder in ("/app", "/app/models", "/opt/venv", "/etc", "/usr/lib", "/dev"):
        assert "Read-only file system" in running.run("touch", f"{folder}/written").printed
    assert re.findall(r"could not create '([^']*)'", running.log) == []
    for told in ("Read-only file system'\n", "Permission denied", "not permitted", "Traceback"):
        assert told not in running.log
    # What Python says of imports has `stderr` in its brackets.
    assert re.findall(r"WARNING (\[(?!.* stderr\]).*)", running.log) == [f"[front] {OPEN_CONTROL}"]
    assert running.run("find", "/tmp", "/dev/shm", "-type", "f").printed == ""


def test_what_auto_comes_to_was_measured_when_the_image_was_made(running: Container) -> None:
    assert running.run("find", "/app/models", "-name", "choices.json").printed.endswith("/choices.json\n")
    assert "Op bert, chosen by its times" in running.log and "Op bert: timing" not in running.log


def test_a_killed_worker_is_replaced(running: Container) -> None:
    workers, before = running.worker_pids(), ready(running)
    os.kill(workers[0], signal.SIGKILL)
    wait_until(lambda: ready(running) == before + 1, "it is replaced")
    assert "killed by SIGKILL" in running.log
    assert len(running.worker_pids()) == len(workers)
    assert answers(running, "bert", TEXT)[0][0] == 0


def test_a_hangup_ends_nothing(running: Container) -> None:
    workers = running.worker_pids()
    os.kill(running.pid, signal.SIGHUP)
    running.wait_until_healthy()
    assert answers(running, "bert", TEXT)[0][0] == 0
    assert running.worker_pids() == workers


def test_a_stop_ends_it_in_the_time_that_compose_gives(built: Image) -> None:
    with Container(built) as container:
        container.wait_until_healthy()
        processes = (container.pid, *container.worker_pids())
        os.kill(container.pid, signal.SIGTERM)
        assert container.exit_code(container.service.stop_grace_s) == 0
        assert [pid for pid in processes if is_running(pid)] == []
        assert container.log.splitlines()[-1].endswith("Service bert has stopped")


def test_a_stop_is_heard_while_process_1_still_loads_the_server(built: Image) -> None:
    with Container(built) as container:
        wait_until(lambda: runs_module(container.pid, SERVER), "it takes over")
        os.kill(container.pid, signal.SIGTERM)
        assert container.exit_code(container.service.stop_grace_s) == 0, container.log


def test_a_stop_is_heard_while_process_1_is_still_the_script(built: Image) -> None:
    with Container(built, command=["python", "-c", SIGNALLED]) as container:
        assert container.exit_code(PATIENCE_S) == 128 + signal.SIGTERM, container.log


def test_another_service_with_an_onnx_model_runs_in_the_image(built: Image, tmp_path: Path) -> None:
    """From a folder that is mounted, with what the image has left of ONNX Runtime."""
    shutil.copy(APPS / "model.py", tmp_path)
    model = onnx_models.serving(tmp_path)
    conf = {"model_config": str(Path("/srv") / model.relative_to(tmp_path)), "device_type": 0}
    config = {"http_port": 18082, "rpc_port": 8088, "op": {"model": {"local_service_conf": conf}}}
    (tmp_path / "config.yml").write_text(yaml.safe_dump(config), "utf-8")
    for path in (tmp_path, *tmp_path.rglob("*")):
        path.chmod(0o755)
    row = {"input_ids": "[[1, 2, 3]]", "token_type_ids": "[[0, 0, 0]]", "attention_mask": "[[1, 1, 1]]"}
    environment = {"SERVICE_CONFIG": "/srv/config.yml"}
    command = ["python", "/srv/model.py"]
    with Container(built, environment, command, volumes={str(tmp_path): "/srv"}) as container:
        container.wait_until_healthy()
        http, rpc = answers(container, "test", row)
        assert http == rpc
        assert http[0] == 0


@pytest.fixture(scope="module")
def small() -> Iterator[Image]:
    """The image of docker/Dockerfile.onnx."""
    with image(ROOT / "docker/Dockerfile.onnx") as made:
        yield made


def test_the_small_image_serves_an_onnx_model_without_paddle_and_without_sources(
    small: Image, tmp_path: Path
) -> None:
    """As docker/Dockerfile.onnx makes it, with a folder of `paddlewheel new` mounted at /srv."""
    service = tmp_path / "news"
    model = onnx_models.serving(service)
    assert paddlewheel("new", service, "--model", model).returncode == 0
    for path in (service, *service.rglob("*")):
        path.chmod(0o755)
    row = {"input_ids": "[[1, 2, 3]]", "token_type_ids": "[[0, 0, 0]]", "attention_mask": "[[1, 1, 1]]"}
    with Container(small, {"PYTHONVERBOSE": "1"}, volumes={str(service): "/srv"}) as container:
        assert not (small.root / "app").exists()
        container.wait_until_healthy()
        http, rpc = answers(container, "news", row)
        assert http == rpc
        assert http[0] == 0
        assert container.run("python", "-c", "import paddle").code == 1
        mounted = re.compile(r"could not create '(?!/srv/)([^']*)'")
        assert mounted.findall(container.log) == []


class TestDeploymentPage:
    """The files and commands of docs/deploy.md for containers, with the image of docker/Dockerfile.onnx."""

    @pytest.fixture
    def derived(self, small: Image, tmp_path: Path) -> Iterator[Image]:
        """The image of the page's Dockerfile, which adds the folder of the page's first command."""
        onnx_models.bare(tmp_path / "models", "scaled").rename(tmp_path / "models/mine")
        (new,) = (block.text for block in PAGE if block.language == "sh")
        assert paddlewheel(*shlex.split(new)[1:], cwd=tmp_path).returncode == 0
        config = tmp_path / "myservice/config.yml"
        ported = config.read_text("utf-8").replace("http_port: 18082", "http_port: ${PORT}")
        config.write_text(ported, "utf-8")
        (tmp_path / "Dockerfile").write_text(FILES["Dockerfile"], "utf-8")
        base, copy = instructions(tmp_path / "Dockerfile")
        assert (base.word, base.rest, copy.word) == ("FROM", "paddlewheel-onnx", "COPY")
        folder, place = copy.rest.split()
        added = small.root / place.lstrip("/")
        shutil.copytree(tmp_path / folder, added, dirs_exist_ok=True)
        try:
            yield small
        finally:
            shutil.rmtree(added)
            added.mkdir()

    def test_compose_starts_and_stops_the_service_that_the_image_has(self, derived: Image) -> None:
        (compose,) = yaml.safe_load(FILES["compose.yml"])["services"].values()
        with Container(derived, compose=compose) as container:
            container.wait_until_healthy()
            assert_scaled(container, "myservice", 18082)
            os.kill(container.pid, signal.SIGTERM)
            assert container.exit_code(container.service.stop_grace_s) == 0, container.log

    def test_docker_run_serves_a_mounted_repository(self, small: Image, tmp_path: Path) -> None:
        (line,) = (block.text for block in PAGE if "--model-repository" in block.text)
        options, _, command = line.partition(" paddlewheel-onnx ")
        given = dict(pairwise(shlex.split(options)))
        folder, place, mode = given["-v"].split(":")
        assert mode == "ro"
        onnx_models.bare(tmp_path, "scaled").rename(tmp_path / "1")
        version = tmp_path / folder / "scaled/1"
        version.parent.mkdir(parents=True)
        (tmp_path / "1").rename(version)
        compose = {
            "command": shlex.split(command),
            "shm_size": given["--shm-size"],
            "stop_grace_period": f"{given['--stop-timeout']}s",
            "tmpfs": ["/tmp"],  # a folder of the base image
        }
        with Container(small, volumes={str(tmp_path / folder): place}, compose=compose) as container:
            container.wait_until_healthy()
            assert_scaled(container, "scaled", 18082)
            os.kill(container.pid, signal.SIGTERM)
            assert container.exit_code(container.service.stop_grace_s) == 0, container.log


def test_the_exported_pod_starts_answers_and_stops_in_its_grace_period(small: Image, tmp_path: Path) -> None:
    """The Deployment of `paddlewheel export kubernetes`: command, user, folders, probes, hook and SIGTERM."""
    onnx_models.bare(tmp_path, "scaled")
    assert paddlewheel("new", "scaling", "--model", "scaled", "--copy", cwd=tmp_path).returncode == 0
    done = paddlewheel("export", "kubernetes", "scaling", "--output", "out", "--memory", "1Gi", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    deployment = yaml.safe_load((tmp_path / "out/deployment.yaml").read_text("utf-8"))
    spec = deployment["spec"]["template"]["spec"]
    (pod,) = spec["containers"]
    assert pod["securityContext"]["readOnlyRootFilesystem"]
    for path in (tmp_path, *tmp_path.rglob("*")):
        path.chmod(0o755)
    compose = {
        "command": pod["command"],
        "user": str(spec["securityContext"]["runAsUser"]),
        "read_only": True,
        "tmpfs": ["/tmp"],
        "shm_size": "1gb",
        "cap_drop": pod["securityContext"]["capabilities"]["drop"],
        "security_opt": ["no-new-privileges:true"],
        "stop_grace_period": f"{spec['terminationGracePeriodSeconds']}s",
    }
    with Container(small, volumes={str(tmp_path / "scaling"): "/srv"}, compose=compose) as container:
        container.wait_until_ready()
        assert_scaled(container, "scaling", 18082)
        for kind in ("startup", "readiness", "liveness"):
            page = pod[f"{kind}Probe"]["httpGet"]["path"]
            address = f"http://127.0.0.1:18082{page}"
            assert container.python("import sys, urllib.request as u; u.urlopen(sys.argv[1])", address) == ""
        hook = pod["lifecycle"]["preStop"]["exec"]["command"]
        assert container.run(hook[0], "0").code == 0
        os.kill(container.pid, signal.SIGTERM)
        assert container.exit_code(container.service.stop_grace_s) == 0, container.log


class TestTritonHosts:
    """The command lines of docs/triton.md, as uid 1000 on a read-only root with a writable /tmp."""

    def container(self, small: Image, tmp_path: Path, host: str, folder: str) -> Container:
        write_model(tmp_path, "doubles", DOUBLED, DOUBLES)
        for path in (tmp_path, *tmp_path.rglob("*")):
            path.chmod(0o755)
        compose = {
            "command": shlex.split(HOSTS[host]),
            "user": "1000",
            "read_only": True,
            "tmpfs": ["/tmp"],
            "cap_drop": ["ALL"],
            "security_opt": ["no-new-privileges:true"],
            "stop_grace_period": "30s",  # of Kubernetes
        }
        return Container(small, volumes={str(tmp_path): folder}, compose=compose)

    @pytest.mark.parametrize(
        ("host", "folder", "ports"),
        [
            ("KServe", "/mnt/models", (8080, 9000)),
            ("PaddleX", "/paddlex/var/paddlex_model_repo", (8000, 8001)),
            ("Model Analyzer", "/srv/models", (8000, 8001)),
        ],
    )
    def test_the_command_of_a_host_starts_answers_and_stops(
        self, small: Image, tmp_path: Path, host: str, folder: str, ports: tuple[int, int]
    ) -> None:
        loads = host == "Model Analyzer"
        calls = [
            ("GET", "/v2/health/live"),
            ("GET", "/v2/health/ready"),
            *([("POST", "/v2/repository/models/doubles/load", {})] if loads else []),
            ("GET", "/v2/models/doubles/ready"),
            ("GET", "/v1/models/doubles"),
            INFER,
        ]
        with self.container(small, tmp_path, host, folder) as container:
            answers = call_server(container, ports, calls)
            assert [status for status, _ in answers] == [200] * len(calls)
            assert json.loads(answers[-1][1])["outputs"][0]["data"] == [2, 4]
            assert "Permission denied" not in container.log and "Traceback" not in container.log
            container.wait_until_healthy()  # on ports of the host's choice
            os.kill(container.pid, signal.SIGTERM)
            assert container.exit_code(container.service.stop_grace_s) == 0, container.log

    def test_the_agent_of_seldon_loads_asks_and_unloads(self, small: Image, tmp_path: Path) -> None:
        model = "/v2/repository/models/doubles"
        with self.container(small, tmp_path, "Seldon Core 2", "/mnt/agent/models") as container:
            answers = call_server(
                container,
                (9000, 9500),
                [
                    ("GET", "/v2/health/live"),
                    ("POST", f"{model}/load", {}),
                    ("GET", "/v2/models/doubles/ready"),
                    INFER,
                    ("POST", f"{model}/unload", {}),
                    ("GET", "/v2/models/doubles/ready"),
                    ("GET", "/v2/health/live"),
                ],
            )
            assert [status for status, _ in answers] == [200, 200, 200, 200, 200, 400, 200]
            assert json.loads(answers[3][1])["outputs"][0]["data"] == [2, 4]
            os.kill(container.pid, signal.SIGTERM)
            assert container.exit_code(container.service.stop_grace_s) == 0, container.log


INFER = (
    "POST",
    "/v2/models/doubles/infer",
    {"inputs": [{"name": "x", "datatype": "FP32", "shape": [2], "data": [1, 2]}]},
)


def call_server(
    container: Container, ports: tuple[int, int], calls: Sequence[tuple[Any, ...]]
) -> list[tuple[int, str]]:
    """Statuses and bodies of calls over HTTP, one after the other; gRPC is live, too."""
    container.wait_until_ready()
    padded = [(*call, None)[:3] for call in calls]
    answers, live = json.loads(container.python(CALLS, json.dumps([*ports, padded])).splitlines()[-1])
    assert live
    return [(status, body) for status, body in answers]


def assert_scaled(container: Container, model: str, port: int) -> None:
    """The model `scaled` answers over v2, on a port of the container."""
    inputs = [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]
    address = f"http://127.0.0.1:{port}/v2/models/{model}/infer"
    told = container.python(POST, address, json.dumps({"inputs": inputs}))
    (output,) = json.loads(told.splitlines()[-1])["outputs"]
    assert output["data"] == [4500, 9000, 13500, 18000]
