"""services/embeddings and services/reranking: each starts with a model, and is asked as its README says."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator

import pytest
import yaml

from tests.support.curl_commands import run_curl
from tests.support.embedding_models import cross_encoder, encoder
from tests.support.followed_documents import Block, blocks_of
from tests.support.free_ports import free_port
from tests.support.service_process import ROOT, ServiceProcess

SERVICES = {
    "embeddings": lambda folder: encoder(folder, {"kind": "embedding"}),
    "reranking": cross_encoder,
}
MAX_SCRIPT_LENGTH = 20


@pytest.fixture(scope="module", params=SERVICES)
def service(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServiceProcess]:
    """A copy of the folder, with a model of its own that is run at once."""
    name = request.param
    folder = tmp_path_factory.mktemp(name) / name
    shutil.copytree(ROOT / "services" / name, folder)
    ports = {"http_port": free_port(), "rpc_port": free_port()}
    config = yaml.safe_load((folder / "config.yml").read_text("utf-8")) | ports
    config["op"][name] |= {"batch_size": 8}
    model = SERVICES[name](folder / "models" / "small")
    config["op"][name]["local_service_conf"] |= {"engine": "onnxruntime", "model_config": str(model)}
    (folder / "config.yml").write_text(yaml.safe_dump(config), "utf-8")
    with ServiceProcess(folder, ports, name=name) as process:
        yield process


def blocks(name: str, language: str) -> list[Block]:
    page = ROOT / "services" / name / "README.md"
    return [block for block in blocks_of(page) if block.language == language]


def test_each_request_of_the_page_is_answered(service: ServiceProcess) -> None:
    asked = [line for block in blocks(service.name, "sh") for line in block.text.splitlines()]
    answers = [run_curl(line, service, ROOT) for line in asked if line.startswith("curl")]
    assert {answer.status for answer in answers} == {200}, answers
    (told,) = answers[0].json["predictions"]
    if service.name == "embeddings":
        assert len(told["embedding"]) == 4 and len(answers[3].json["data"]) == 2
    else:
        best, other = answers[3].json
        assert best["index"] == 1 and best["score"] > other["score"]
        assert best["score"] == pytest.approx(told["score"], abs=1e-6)


def test_the_program_of_the_page_prints_an_answer(service: ServiceProcess) -> None:
    (program,) = blocks(service.name, "python")
    text = program.text.replace("127.0.0.1:8088", service.rpc_address)
    done = subprocess.run([sys.executable, "-c", text], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("[")


@pytest.mark.parametrize("name", SERVICES)
def test_its_script_is_short_and_both_languages_show_the_same(name: str) -> None:
    folder = ROOT / "services" / name
    assert len((folder / "web_service.py").read_text("utf-8").splitlines()) <= MAX_SCRIPT_LENGTH
    assert blocks_of(folder / "README.md") == blocks_of(folder / "README_zh.md")
