"""docs/your-own-model.md does what it says: its files and commands, in its order, in an empty folder."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client.values import parse_value
from tests.support.curl_commands import run_curl
from tests.support.followed_documents import Block, blocks_of
from tests.support.free_ports import free_port
from tests.support.service_process import ROOT, ServiceProcess

ENGLISH, CHINESE = (ROOT / "docs" / name for name in ("your-own-model.md", "your-own-model_zh.md"))
START = "cd review_service\npython3 web_service.py\n"
SERVICE_NAME = "reviews"
DYNAMIC_LOGITS = """
import json, sys
import paddle
from reviews import ReviewClassifier

model = ReviewClassifier()
model.set_state_dict(paddle.load("reviews.pdparams"))
model.eval()
for ids in json.load(sys.stdin):
    input_ids = paddle.to_tensor([ids], "int64")
    sys.stdout.write(json.dumps(model(input_ids, paddle.ones_like(input_ids)).tolist()) + "\\n")
"""


class Reader:
    """Follows the document in `folder`, its two ports replaced by free ones."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ports = {"http_port": free_port(), "rpc_port": free_port()}
        self.answers: list[tuple[dict[str, Any], dict[str, Any] | None]] = []
        self.generated_logits: dict[tuple[int, ...], list[float]] = {}
        self.service: ServiceProcess | None = None
        self.metadata: dict[str, Any] = {}
        self.inferred: dict[str, Any] = {}
        self.predicted: dict[str, Any] = {}

    def follow(self, blocks: list[Block]) -> None:
        try:
            for block in blocks:
                self._do(block)
            self._ask_over_kserve()
        finally:
            self._stop()

    def _do(self, block: Block) -> None:
        text = block.text
        if block.title:
            (self.folder / block.title).write_text(text, encoding="utf-8")
        elif block.language == "json":
            self.answers[-1] = (self.answers[-1][0], json.loads(text))
        elif text == START:
            self._start()
        elif text.startswith("curl "):
            assert self.service is not None
            self.answers.append((run_curl(text, self.service, self.folder).json, None))
        else:
            self._shell(text)

    def _shell(self, text: str) -> None:
        python = Path(sys.executable).parent
        env = {**os.environ, "PYTHONPATH": str(ROOT), "PATH": f"{python}{os.pathsep}{os.environ['PATH']}"}
        done = subprocess.run(
            text, shell=True, cwd=self.folder, env=env, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"

    def _start(self) -> None:
        first = self.service is None
        self._stop()
        folder = self.folder / "review_service"
        config = folder / "config.yml"
        text = config.read_text("utf-8").replace("http_port: 18082", f"http_port: {self.ports['http_port']}")
        text = text.replace("rpc_port: 8088", f"rpc_port: {self.ports['rpc_port']}")
        config.write_text(text, encoding="utf-8")
        self.service = ServiceProcess(folder, self.ports, name=SERVICE_NAME)
        if first:
            self._ask_the_generated_service()

    def _ask_the_generated_service(self) -> None:
        assert self.service is not None
        for ids in ([2, 12, 8], [1], list(range(1, 31)), [2, 12] * 20):
            feeds = {"input_ids": json.dumps([ids]), "attention_mask": json.dumps([[1] * len(ids)])}
            (logits,) = np.array(parse_value(self.service.predict(feeds)["logits"]))
            self.generated_logits[tuple(ids)] = logits.tolist()

    def _ask_over_kserve(self) -> None:
        assert self.service is not None
        self.metadata = self.service.http("/v2/models/reviews").json
        tensor = {"name": "text", "datatype": "BYTES", "shape": [1], "data": ["a wonderful film"]}
        self.inferred = self.service.http("/v2/models/reviews/infer", json.dumps({"inputs": [tensor]})).json
        body = json.dumps({"instances": [{"text": "a bad film"}]})
        self.predicted = self.service.http("/v1/models/reviews:predict", body).json

    def _stop(self) -> None:
        if self.service is None or self.service.process.poll() is not None:
            return
        self.service.terminate()
        try:
            assert self.service.exit_code() == 0
        finally:
            self.service.close()


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    reader = Reader(tmp_path_factory.mktemp("own"))
    reader.follow(blocks_of(ENGLISH))
    yield reader


def test_the_served_logits_are_the_dynamic_model_s(reader: Reader) -> None:
    asked = list(reader.generated_logits)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", DYNAMIC_LOGITS],
        cwd=reader.folder, input=json.dumps(asked), capture_output=True, text=True, check=True,
    )  # fmt: skip
    dynamic = [json.loads(line)[0] for line in done.stdout.splitlines()]
    assert len(dynamic) == 4
    np.testing.assert_allclose(list(reader.generated_logits.values()), dynamic, rtol=0, atol=1e-5)


def test_every_request_of_the_document_is_answered_as_it_shows(reader: Reader) -> None:
    assert len(reader.answers) == 3
    shown = [(answer, documented) for answer, documented in reader.answers if documented is not None]
    assert len(shown) == 2
    for answer, documented in shown:
        assert {**answer, "value": None} == {**documented, "value": None}
        for given, told in zip(answer["value"], documented["value"], strict=True):
            values, told_values = parse_value(given), parse_value(told)
            if np.array(told_values).dtype.kind == "f":
                np.testing.assert_allclose(values, told_values, atol=0.1)  # training differs among CPUs
            else:
                assert values == told_values


def test_numbers_as_texts_and_as_tensors_have_the_same_answer(reader: Reader) -> None:
    assert reader.answers[1][0] == reader.answers[0][0]
    assert reader.answers[0][0]["err_no"] == 0


def test_the_service_of_texts_declares_its_tensors_to_clients_of_kserve(reader: Reader) -> None:
    texts = {"datatype": "BYTES", "shape": [1]}
    assert reader.metadata["inputs"] == [{"name": "text", **texts}]
    assert reader.metadata["outputs"] == [{"name": "label", **texts}]
    assert reader.inferred["outputs"] == [{"name": "label", **texts, "data": ["positive"]}]
    assert reader.predicted == {"predictions": [{"label": ["negative"]}]}


def test_both_languages_show_the_same_blocks() -> None:
    assert blocks_of(ENGLISH) == blocks_of(CHINESE)
    assert [block.language for block in blocks_of(ENGLISH)].count("python") == 4


@pytest.mark.parametrize("name", ["your-own-model", "config"])
def test_the_documents_link_to_what_exists(name: str) -> None:
    for document in (ROOT / "docs" / f"{name}.md", ROOT / "docs" / f"{name}_zh.md"):
        links = re.findall(r"\]\(([^)#:]+)\)", document.read_text("utf-8"))
        assert [link for link in links if not (document.parent / link).exists()] == []
    assert links != []
