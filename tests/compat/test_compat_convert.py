"""`paddle_serving_client.convert` and `inference_model_to_serving`: the two folders under any names."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.engines import create_predictor, input_examples
from pipeline.errors import ConfigError, InvalidInput
from pipeline.models.serving_model import ServingModel, load_serving_model
from pipeline.paddle_serving.op_settings import LocalClient
from tests.support.models import local_conf
from tests.support.service_process import ROOT


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
    (line,) = [line for line in done.stderr.splitlines() if "text.pdmodel" in line]
    assert line.startswith(f"{exported / 'text.pdmodel'} is not there: taken text.json, as Paddle 3 writes")
    model = load_serving_model(tmp_path / "serving_server")
    assert model.program.name == "text.json"
    assert [fetch.alias for fetch in model.fetches] == ["save_infer_model/scale_0.tmp_0"]
    done = convert("--dirname", str(exported), *files, "--fetch_alias_names", "score", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert [v.alias for v in load_serving_model(tmp_path / "serving_server").fetches] == ["score"]


def test_an_old_fetch_list_finds_the_outputs_that_paddle_3_has_numbered(
    exported: Path, tmp_path: Path
) -> None:
    """`.tmp_0` or `.tmp_1`, by the version that exported it, or `fetch_name_0`: the first output."""
    assert (
        convert("--dirname", str(exported), "--model_filename", "text.json", folder=tmp_path).returncode == 0
    )
    model = load_serving_model(tmp_path / "serving_server")
    assert [fetch.alias for fetch in model.fetches] == ["fetch_name_0"]
    old = "save_infer_model/scale_0.tmp_1"
    predictor = create_predictor(model, local_conf(fetch_list=[old]))
    feeds = input_examples(predictor, rows=2, length=3)
    assert list(predictor.run(feeds)) == [old]
    client = LocalClient(create_predictor(model, local_conf()))
    names = ["save_infer_model/scale_0", "fetch_name_0"]
    assert list(client.predict(feeds, names, batch=True)) == names
    with pytest.raises(InvalidInput, match=r"has 'save_infer_model/scale_1.tmp_1'; the model has fetch_n"):
        client.predict(feeds, ["save_infer_model/scale_1.tmp_1"], batch=True)


def test_a_fetch_with_a_name_of_its_own_has_no_other(classifier: ServingModel) -> None:
    with pytest.raises(ConfigError, match=r"no 'save_infer_model/scale_0.tmp_1', only logits"):
        create_predictor(classifier, local_conf(fetch_list=["save_infer_model/scale_0.tmp_1"]))


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
