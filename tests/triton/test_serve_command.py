"""`paddlewheel serve`: its flags, and what it says of a repository that can't be served."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.errors import ConfigError
from pipeline.models.serving_model import load_serving_model
from tests.support.command_line import paddlewheel
from tests.support.repository_process import RepositoryProcess
from tests.support.triton_repository import write_model

TENSORS = """
backend: "identity"
input { name: "I" data_type: TYPE_FP32 dims: [ 2 ] }
output [ { name: "O" data_type: TYPE_FP32 dims: [ 2 ] } ]
"""


@pytest.mark.parametrize(
    ("flag", "told"),
    [
        ("--model-repositry=x", "did you mean --model-repository?"),
        ("--http-prt=1", "did you mean --http-port?"),
        ("--strict-readines=true", "did you mean --strict-readiness?"),
        ("--allow-http=perhaps", "'perhaps' is neither true nor false"),
        ("--model-control-mode=sometimes", "invalid choice: 'sometimes'"),
    ],
)
def test_a_flag_that_triton_does_not_know_is_refused_with_the_nearest(
    flag: str, told: str, tmp_path: Path
) -> None:
    answer = paddlewheel("serve", f"--model-repository={tmp_path}", flag)
    assert (answer.returncode, told in answer.stderr) == (2, True), answer.stderr


@pytest.mark.parametrize(
    ("files", "told"),
    [
        ({}, "holds no model that can be served"),
        ({"bert/config.pbtxt": 'platform: "tensorrt_plan"'}, "serve the ONNX model"),
        ({"bert/config.pbtxt": 'backend: "python"\ninput [ { nam: "x" } ]'}, "line 2: unknown field 'nam'"),
        ({"bert/config.pbtxt": 'name: "a"\nname: "b"'}, "line 2: "),
        ({"bert/config.pbtxt": 'name: "other"', "bert/1/model.py": ""}, "name is 'other', and the folder's"),
        ({"bert/config.pbtxt": f'{TENSORS} max_batch_size: -1', "bert/1/x": ""}, "non-negative"),
    ],
)  # fmt: skip
def test_a_repository_without_a_model_to_serve_says_why(
    files: dict[str, str], told: str, tmp_path: Path
) -> None:
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content, "utf-8")
    answer = paddlewheel("serve", f"--model-repository={tmp_path}")
    assert (answer.returncode, told in answer.stderr) == (2, True), answer.stderr


def test_the_start_tells_models_and_flags_without_effect(tmp_path: Path) -> None:
    write_model(tmp_path, "same", TENSORS)
    write_model(tmp_path, "odd", f"{TENSORS} version_policy {{ specific {{ versions: 7 }} }}")
    flags = ["--http-thread-count=8", "--log-verbose=1", "--allow-metrics=false", "--strict-readiness=false"]
    with RepositoryProcess(tmp_path, arguments=flags) as service:
        assert "--http-thread-count has no effect: in Triton it " in service.log
        lines = [line.split() for line in service.log.splitlines()]
        assert ["same", "1", "READY"] in lines
        assert any(line[:2] == ["odd", "UNAVAILABLE:"] for line in lines)


def test_poll_serves_what_comes_changes_and_goes(tmp_path: Path) -> None:
    write_model(tmp_path, "first", TENSORS)
    with RepositoryProcess(
        tmp_path, arguments=["--model-control-mode=poll", "--repository-poll-secs=1"]
    ) as service:
        write_model(tmp_path, "second", TENSORS)
        service.wait_for_log("Model second is loaded")
        assert service.http("/v2/models/second/ready").status == 200
        (tmp_path / "first" / "config.pbtxt").write_text(TENSORS.replace("dims: [ 2 ]", "dims: [ 3 ]"))
        service.wait_for_log("Model first is loaded")
        assert service.http("/v2/models/first").json["inputs"][0]["shape"] == [3]
        (tmp_path / "first").rename(tmp_path.parent / f"{tmp_path.name}-gone")
        service.wait_for_log("Unloaded: first:1")
        assert service.http("/v2/models/first/ready").status == 400
        assert service.http("/v2/repository/models/second/unload", b"").status == 503


def test_explain_tells_models_and_what_is_wrong(tmp_path: Path) -> None:
    write_model(tmp_path, "same", TENSORS)
    write_model(
        tmp_path,
        "twice",
        """
        platform: "ensemble"
        input { name: "A" data_type: TYPE_FP32 dims: 2 }
        output { name: "B" data_type: TYPE_FP32 dims: 2 }
        ensemble_scheduling { step [
          { model_name: "same" input_map { key: "I" value: "A" } output_map { key: "O" value: "m" } },
          { model_name: "same" input_map { key: "I" value: "m" } output_map { key: "O" value: "B" } } ] }
        """,
    )
    sound = paddlewheel("explain", tmp_path)
    assert sound.returncode == 0, sound.stderr
    assert "step 2: same version 1 takes step 1.O as I" in sound.stdout
    assert "takes A FP32 [2]" in sound.stdout
    write_model(
        tmp_path, "looping", (tmp_path / "twice" / "config.pbtxt").read_text().replace("same", "looping")
    )
    flawed = paddlewheel("explain", tmp_path)
    assert flawed.returncode == 1
    assert "circular dependency between ensembles: looping -> looping" in flawed.stdout


def test_a_service_that_is_given_a_repository_names_the_command_that_serves_it(tmp_path: Path) -> None:
    folder = write_model(tmp_path, "same", TENSORS)
    for given in (tmp_path, folder):
        with pytest.raises(ConfigError, match=f"paddlewheel serve --model-repository {tmp_path}"):
            load_serving_model(given)
