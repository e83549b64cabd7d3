"""docs/deploy.md: the unit's commands start, reload and stop a service; the other files fit that service."""

from __future__ import annotations

import configparser
import json
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.support.command_line import paddlewheel
from tests.support.followed_documents import blocks_of
from tests.support.free_ports import free_port
from tests.support.onnx_models import bare
from tests.support.service_process import ROOT, ServiceProcess

PAGE, CHINESE = (ROOT / "docs" / name for name in ("deploy.md", "deploy_zh.md"))
FILES = {block.title: block.text for block in blocks_of(PAGE) if block.title}


class Unit(configparser.RawConfigParser):
    optionxform = staticmethod(str)  # type: ignore[assignment]


@pytest.fixture(scope="module")
def unit() -> configparser.SectionProxy:
    parser = Unit(strict=False)
    parser.read_string(FILES["myservice.service"])
    return parser["Service"]


@pytest.fixture(scope="module")
def service(
    unit: configparser.SectionProxy, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServiceProcess]:
    """The service of the page, started by the unit's command, with its port in the environment."""
    folder = tmp_path_factory.mktemp("deploy")
    bare(folder / "models", "scaled").rename(folder / "models" / "mine")
    new = next(block.text for block in blocks_of(PAGE) if block.language == "sh")
    done = paddlewheel(*shlex.split(new)[1:], cwd=folder)
    assert done.returncode == 0, done.stderr
    config = folder / "myservice" / "config.yml"
    ports = {"http_port": free_port(), "rpc_port": free_port()}
    text = config.read_text("utf-8").replace("http_port: 18082", "http_port: ${PORT:-18082}")
    text = text.replace("rpc_port: 8088", f"rpc_port: {ports['rpc_port']}").replace(
        "engine: auto", "engine: onnxruntime"
    )
    config.write_text(text.replace("batch_size: auto", "batch_size: 4"), "utf-8")
    program, *arguments = unit["ExecStart"].replace("/srv/myservice", str(folder / "myservice")).split()
    assert program.endswith("/bin/paddlewheel")
    env = {"PORT": str(ports["http_port"])}
    with ServiceProcess(
        "-m", ports, name="myservice", arguments=["pipeline", *arguments], env=env
    ) as service:
        yield service


def test_prometheus_finds_metrics(service: ServiceProcess) -> None:
    (job,) = yaml.safe_load(FILES["prometheus.yml"])["scrape_configs"]
    assert job["static_configs"] == [{"targets": ["localhost:18082"]}]
    answer = service.http(job["metrics_path"])
    assert answer.status == 200 and b"paddlewheel_" in answer.body and b"nv_inference_" in answer.body


def test_the_unit_reloads_and_stops_the_process_that_it_starts(
    unit: configparser.SectionProxy, service: ServiceProcess
) -> None:
    assert unit["ExecReload"].split() == ["/bin/kill", "-HUP", "$MAINPID"]
    service.process.send_signal(signal.SIGHUP)
    body = json.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]})
    assert service.http("/v2/models/myservice/infer", body).status == 200
    service.terminate()
    assert service.exit_code() == 0


def test_systemd_knows_every_key_of_the_unit(tmp_path: Path) -> None:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("the machine has no `systemd-analyze` (systemd)")
    installed = str(Path(sys.executable).parent / "paddlewheel")
    text = FILES["myservice.service"].replace("/opt/paddlewheel/.venv/bin/paddlewheel", installed)
    assert installed in text
    (tmp_path / "myservice.service").write_text(text, "utf-8")
    command = [program, "verify", "--man=no", str(tmp_path / "myservice.service")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert [line for line in done.stderr.splitlines() if "myservice" in line] == []


def test_limits_of_nginx_and_of_containers_fit_the_defaults() -> None:
    nginx = FILES["nginx.conf"]
    assert "client_max_body_size 64m" in nginx and "proxy_read_timeout 35s" in nginx
    assert nginx.count("{") == nginx.count("}")
    compose = yaml.safe_load(FILES["compose.yml"])["services"]["myservice"]
    assert compose["command"] == ["paddlewheel", "run", "/srv"]
    assert "COPY myservice /srv" in FILES["Dockerfile"]
    assert "WORKDIR /srv" in (ROOT / "docker" / "Dockerfile.onnx").read_text("utf-8")


def test_the_command_of_the_repository_container_has_known_options(tmp_path: Path) -> None:
    (line,) = (block.text for block in blocks_of(PAGE) if "--model-repository" in block.text)
    words = shlex.split(line)
    command = words[words.index("paddlewheel") + 1 :]
    command[command.index("--model-repository=/models")] = f"--model-repository={tmp_path}"
    done = paddlewheel(*command, "--model-control-mode=none")
    assert done.returncode == 2 and "holds no model" in done.stderr, done.stderr


def test_both_languages_show_the_same_blocks() -> None:
    assert blocks_of(PAGE) == blocks_of(CHINESE)
