"""/openapi.json and /docs: what a service tells people of its endpoints, and that it is true."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.front.http.openapi import docs_page
from tests.support import models
from tests.support.service_process import APPS, ServiceProcess


@pytest.fixture(scope="module")
def classifier_service(model_folder: Path) -> Iterator[ServiceProcess]:
    conf = {"model_config": str(models.classifier(model_folder)), "device_type": 0}
    with ServiceProcess(APPS / "model.py", {"op": {"model": {"local_service_conf": conf}}}) as service:
        yield service


def examples(service: ServiceProcess) -> dict[str, Any]:
    """By path what its POST takes, of those with an example."""
    paths = service.http("/openapi.json").json["paths"]
    posts = {path: methods["post"] for path, methods in paths.items() if "post" in methods}
    contents = {path: post["requestBody"]["content"]["application/json"] for path, post in posts.items()}
    return {path: content["example"] for path, content in contents.items() if "example" in content}


@pytest.mark.parametrize("declared", ["rows", "whole", "open"])
def test_every_example_is_answered_as_it_stands(declared: str) -> None:
    with ServiceProcess(APPS / "rows.py", env={"DECLARED": declared}) as service:
        given = examples(service)
        answers = {path: service.http(path, json.dumps(body)) for path, body in given.items()}
    expected = {f"/v2/{path}" for path in ("models/test/infer", "models/test/generate", "repository/index")}
    expected.add("/v1/models/test:predict")
    assert given.keys() == (expected | {"/test/prediction"} if declared == "open" else expected)
    assert {path: answer.status for path, answer in answers.items()} == dict.fromkeys(given, 200), answers
    assert all(
        "err_no" not in answer.json or answer.json["err_no"] == 0
        for answer in answers.values()
        if answer.body
    )


def test_a_model_op_has_examples_too(classifier_service: ServiceProcess) -> None:
    given = examples(classifier_service)
    for path in ("/v1/models/model:predict", "/v2/models/model/infer"):
        answer = classifier_service.http(path, json.dumps(given[path]))
        assert answer.status == 200, answer
    assert "/test/prediction" not in given  # the script declares none


def test_every_page_is_answered(classifier_service: ServiceProcess) -> None:
    paths = classifier_service.http("/openapi.json").json["paths"]
    gets = [path for path, methods in paths.items() if "get" in methods]
    assert {path: classifier_service.http(path).status for path in gets} == dict.fromkeys(gets, 200)
    assert {"/metrics", "/health/ready", "/v1/models/model", "/v2/models/test/stats"} <= set(gets)


def test_schemas_tell_the_declared_tensors() -> None:
    with ServiceProcess(APPS / "rows.py", env={"DECLARED": "rows"}) as service:
        operation = service.http("/openapi.json").json["paths"]["/v1/models/test:predict"]["post"]
    instances = operation["requestBody"]["content"]["application/json"]["schema"]["properties"]["instances"]
    numbers = instances["items"]["properties"]["numbers"]
    assert (numbers["type"], numbers["minItems"], numbers["maxItems"]) == ("array", 2, 2)
    assert numbers["items"] == {"type": "integer"}
    assert (instances["minItems"], instances["maxItems"]) == (1, 4)
    answer = operation["responses"]["200"]["content"]["application/json"]["schema"]
    assert answer["properties"]["predictions"]["items"]["required"] == ["sum", "words", "rows"]


def test_the_page_runs_nothing_but_its_own_script(classifier_service: ServiceProcess) -> None:
    answer = classifier_service.http("/docs")
    page, policy = answer.body.decode(), answer.headers["content-security-policy"]
    assert answer.status == 200 and answer.headers["content-type"].startswith("text/html")
    for tag, directive in (("script", "script-src"), ("style", "style-src")):
        (content,) = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.S)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{directive} 'sha256-{digest}';" in policy
    assert policy.startswith("default-src 'none';") and "unsafe" not in policy
    assert not re.search(r"(src|href)\s*=\s*[\"']?(https?:)?//", page) and "innerHTML" not in page


def test_an_example_of_no_input_ends_the_start(tmp_path: Path) -> None:
    script = tmp_path / "web_service.py"
    text = (APPS / "rows.py").read_text().replace('example = {"words"', 'example = {"word"')
    script.write_text(text)
    with ServiceProcess(script, env={"DECLARED": "rows"}, wait=False) as service:
        assert service.process.wait(60) == 2
        assert "Op op: example: 'word' is no input; input_tensors has numbers, words" in service.log


def test_cards_tell_what_runs_each_model_and_operations_name_the_model_they_ask(
    classifier_service: ServiceProcess,
) -> None:
    document = classifier_service.http("/openapi.json").json
    labels = list(models.LABELS)
    told = {"version": "1", "engine": "Paddle Inference", "labels": labels, "ops": ["model"]}
    assert document["x-models"] == {"test": {"op": "", **told}, "model": {"op": "model", **told}}
    assert document["x-rpc-port"] == classifier_service.rpc_port
    asked = {
        path: operation["x-model"]
        for path, methods in document["paths"].items()
        for operation in methods.values()
        if "x-model" in operation
    }
    assert asked["/test/prediction"] == asked["/v1/models/test:predict"] == "test"
    assert asked["/v2/models/model/infer"] == asked["/v1/models/model"] == "model"
    assert {name for path, name in asked.items() if f"/{name}" not in path} == set()
    assert "/v2/health/ready" not in asked


def test_the_card_tells_the_precision_in_force_which_is_bf16_where_the_cpu_has_it(model_folder: Path) -> None:
    model = str(models.classifier(model_folder))
    conf = {"model_config": model, "device_type": 0, "precision": "bf16"}
    with ServiceProcess(APPS / "model.py", {"op": {"model": {"local_service_conf": conf}}}) as service:
        cards = service.http("/openapi.json").json["x-models"]
        log = service.log
    has_it = {"avx512_bf16", "amx_bf16"} & set(Path("/proc/cpuinfo").read_text("utf-8").split())
    assert cards["test"]["engine"] == ("Paddle Inference, bf16" if has_it else "Paddle Inference")
    assert ("this has neither: use fp32" in log) is not bool(has_it)


def test_no_name_is_declared_by_two_scripts_of_the_page() -> None:
    """The scripts are one program: the later of two functions would replace the other."""
    _, page = docs_page()
    names = re.findall(r"^(?:async )?(?:function|const|let|class) (\w+)", page.decode(), re.MULTILINE)
    assert len(names) > 100 and sorted(set(names)) == sorted(names)
