"""docs/triton.md does what it says: each command and program, against the service that it names."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.support.free_ports import free_port
from tests.support.service_process import ROOT, ServiceProcess

ENGLISH, CHINESE = (ROOT / "docs" / name for name in ("triton.md", "triton_zh.md"))


def blocks_of(document: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", document.read_text("utf-8"), re.M | re.S)


LINES = [line for block in blocks_of(ENGLISH, "sh") for line in block.splitlines()]
COMMANDS = [line for line in LINES if line.startswith("curl")]  # the others: tests/triton/
PROGRAMS = [block for block in blocks_of(ENGLISH, "python") if "tritonclient" in block]


@pytest.fixture(scope="module")
def service() -> Iterator[ServiceProcess]:
    """The default service, with the ports that the page opens."""
    config = yaml.safe_load((ROOT / "config.yml").read_text("utf-8"))
    config["op"]["bert"]["concurrency"] = 1
    (ports,) = blocks_of(ENGLISH, "yaml")
    config["v2"] = {name: free_port() for name in yaml.safe_load(ports)["v2"]}
    arguments = ["--config", "{config}"]
    with ServiceProcess(ROOT / "web_service.py", config, name="bert", arguments=arguments, folder=ROOT) as it:
        yield it


def here(text: str, service: ServiceProcess) -> str:
    """With the ports of the running service."""
    for port, own in ((18082, service.http_port), (8088, service.rpc_port)):
        text = text.replace(f"localhost:{port}", f"127.0.0.1:{own}")
    return text


@pytest.mark.parametrize("command", COMMANDS, ids=lambda line: line.split("localhost:18082")[1][:40])
def test_each_command_is_answered(service: ServiceProcess, command: str) -> None:
    done = subprocess.run(
        here(command, service).replace("curl -s", "curl -sS --fail-with-body"),
        shell=True, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    answer = json.loads(done.stdout)
    if "取胜" in command:
        assert "sports" in done.stdout
    else:
        assert "bert" in json.dumps(answer)


@pytest.mark.parametrize("program", PROGRAMS, ids=["http", "grpc"])
def test_each_program_prints_an_answer(service: ServiceProcess, program: str) -> None:
    command = [sys.executable, "-c", here(program, service)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "b'sports'" in done.stdout or "array([3])" in done.stdout


def test_both_languages_have_the_same_examples_and_rows() -> None:
    for language in ("sh", "yaml"):
        assert blocks_of(ENGLISH, language) == blocks_of(CHINESE, language)
    code = [
        [re.sub(r"  # .*", "", block) for block in blocks_of(path, "python")] for path in (ENGLISH, CHINESE)
    ]
    assert code[0] == code[1]
    structure = [re.findall(r"^(#+|\|)", path.read_text("utf-8"), re.M) for path in (ENGLISH, CHINESE)]
    assert structure[0] == structure[1]
