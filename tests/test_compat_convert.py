"""`paddle_serving_client.convert` and `inference_model_to_serving`: the two folders under any names."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.serving_model import ServingModel, load_serving_model
from service_process import ROOT


@pytest.fixture(scope="module")
def exported(classifier: ServingModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an exported program beside files of another one."""
    inference = tmp_path_factory.mktemp("exported")
    assert classifier.params is not None
    shutil.copy(classifier.program, inference / "text.json")
    shutil.copy(classifier.params, inference / "text.pdiparams")
    (inference / "other.json").write_text("{}", "utf-8")
    (inference / "other.pdiparams").write_bytes(b"")
    return inference


def convert(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'compat'}", "GLOG_minloglevel": "2"}
    command = [sys.executable, "-m", "paddle_serving_client.convert", *arguments]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)


def test_the_command_line_of_old_makes_a_model_that_loads(exported: Path, tmp_path: Path) -> None:
    files = ("--model_filename", "text.json", "--params_filename", "text.pdiparams")
    folders = ("--serving_server", "text_server", "--serving_client", "out/text_client")
    aliases = ("--feed_alias_names", "ids,types,mask", "--fetch_alias_names", "score")
    done = convert("--dirname", str(exported), *files, *folders, *aliases, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    model = load_serving_model(tmp_path / "text_server")
    assert [feed.alias for feed in model.feeds] == ["ids", "types", "mask"]
    assert [fetch.alias for fetch in model.fetches] == ["score"]
    assert (tmp_path / "out/text_client/serving_client_conf.prototxt").is_file()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "text_server"]


def test_a_script_that_names_the_file_of_paddle_2_finds_that_of_paddle_3(
    exported: Path, tmp_path: Path
) -> None:
    files = ("--model_filename", "text.pdmodel", "--params_filename", "text.pdiparams")
    done = convert("--dirname", str(exported), *files, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert load_serving_model(tmp_path / "serving_server").program.name == "text.json"


def test_a_folder_that_is_no_model_is_left_as_it_is(exported: Path, tmp_path: Path) -> None:
    (tmp_path / "serving_server").mkdir()
    (tmp_path / "serving_server" / "diary.txt").write_text("dear", "utf-8")
    done = convert("--dirname", str(exported), folder=tmp_path)
    assert done.returncode == 2
    (sentence,) = done.stderr.splitlines()
    assert "serving_server exists and is no serving model" in sentence
    assert (tmp_path / "serving_server" / "diary.txt").read_text() == "dear"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--dirname", "nowhere"], "nowhere is not a folder"),
        (["--dirname", ".", "--model_filename", "no.pdmodel"], "no.pdmodel is not a file"),
        (["--dirname", ".", "--encryption", "True"], "encrypted models are not supported"),
    ],
    ids=["no folder", "no such file", "encryption"],
)
def test_what_can_not_be_converted_is_told_in_one_sentence(
    arguments: list[str], told: str, tmp_path: Path
) -> None:
    done = convert(*arguments, folder=tmp_path)
    assert done.returncode == 2
    (sentence,) = done.stderr.splitlines()
    assert told in sentence
