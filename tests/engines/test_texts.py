"""Programs that take texts, with their tokenizer in them: lists of str from hooks, alone and in batches."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.engines import Predictor, create_predictor
from pipeline.errors import ConfigError, ConversionError, InvalidInput, UnusableFeed
from pipeline.models.serving_model import load_serving_model
from tests.support import text_models
from tests.support.models import local_conf
from tests.support.service_process import APPS, ServiceProcess

LINES = {"我是中国人": [40.0, 7.0], "hello WORLDs 我": [43.0, 6.0], "是": [11.0, 3.0], "?": [6.0, 3.0]}


@pytest.fixture(scope="module")
def predictor(model_folder: Path) -> Predictor:
    return create_predictor(load_serving_model(text_models.texts(model_folder)), local_conf())


def service(model: Path, **env: str) -> ServiceProcess:
    conf = {"model_config": str(model), "thread_num": 1}
    config = {"op": {"texts": {"batch_size": 16, "local_service_conf": conf}}}
    return ServiceProcess(APPS / "texts.py", config, env=env)


def test_lists_of_texts_of_several_requests_share_a_run(model_folder: Path, tmp_path: Path) -> None:
    several = "\n".join(LINES)
    with service(text_models.texts(model_folder)) as process:
        assert process.predict({"lines": several}) == {"score": str(list(LINES.values()))}
        before = process.metric("paddlewheel_op_batch_rows_count", op="texts")
        gate = tmp_path / "gate"
        asked = [*LINES, several, "\ud800".encode("utf-8", "replace").decode()]
        held = {"lines": "是", "gate": str(gate)}
        answers = process.ask_together([{"lines": lines} for lines in asked], held, gate)
        assert [answer["value"] for answer in answers[:5]] == [
            *([str([score])] for score in LINES.values()), [str(list(LINES.values()))]
        ]  # fmt: skip
        runs = process.metric("paddlewheel_op_batch_rows_count", op="texts") - before
        assert 0 < runs < len(asked)


def test_a_process_of_the_apps_own_may_hand_the_list_to_its_client(model_folder: Path) -> None:
    with service(text_models.texts(model_folder), LISTS="1") as process:
        assert process.predict({"lines": "是\n?"}) == {"score": "[[11.0, 3.0], [6.0, 3.0]]"}


@pytest.mark.parametrize("use_mkldnn", [None, True, False], ids=["default", "onednn", "native"])
def test_a_program_whose_answers_depend_on_padding_shares_no_runs(
    model_folder: Path, use_mkldnn: bool | None
) -> None:
    model = load_serving_model(text_models.bare_tokens(model_folder))
    predictor = create_predictor(model, local_conf(use_mkldnn=use_mkldnn, ir_optim=True))
    assert not predictor.merges
    fetches = predictor.run({"text": np.array(["是", "我是"], object)})
    assert {name: fetch.tolist() for name, fetch in fetches.items()} == {
        "score": [[11.0, 4.0], [16.0, 4.0]],
        "ids": [[2, 6, 3, 0], [2, 5, 6, 3]],
    }


@pytest.mark.parametrize(
    "texts",
    [["我是"], np.array(["我是"]), np.array(["我是".encode()], object), np.array([["我是"]], object)],
    ids=["list", "array of str", "bytes", "a column"],
)
def test_texts_come_as_lists_and_as_arrays(predictor: Predictor, texts: Any) -> None:
    assert predictor.merges
    assert predictor.run({"text": texts})["score"].tolist() == [[16.0, 4.0]]


@pytest.mark.parametrize(
    ("texts", "err_no", "told"),
    [
        (["a", 1], 10000, "holds a int, expected str or bytes"),
        (["\ud800"], 10000, "texts that are no UTF-8"),
        (np.array([b"\xff"], object), 10000, "texts that are no UTF-8"),
        (np.ones(2), 10000, "is float64, expected objects of str or bytes"),
        ([1], 7000, "is of type list"),
        ("text", 7000, "is of type str"),
    ],
)
def test_what_is_no_text_is_refused(predictor: Predictor, texts: Any, err_no: int, told: str) -> None:
    with pytest.raises(InvalidInput, match=told) as caught:
        predictor.run({"text": texts})
    assert caught.value.err_no == err_no
    assert predictor.run({"text": ["是"]})["score"].tolist() == [[11.0, 3.0]]


def test_a_list_of_texts_is_no_feed_of_numbers(model_folder: Path) -> None:
    from tests.support import models

    linear = create_predictor(load_serving_model(models.linear(model_folder)), local_conf())
    with pytest.raises(UnusableFeed, match="of objects, not all of them numbers"):
        linear.run({"x": ["a"] * 13})


def test_a_vocabulary_that_is_cut_off_is_told(model_folder: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut"
    shutil.copytree(text_models.texts(model_folder), cut)
    params = cut / "inference.pdiparams"
    params.write_bytes(params.read_bytes()[:100])
    with pytest.raises(ConfigError, match=r"holds 0 whole tensors, inference\.pdmodel has 2 param"):
        create_predictor(load_serving_model(cut), local_conf())


def test_such_a_program_is_not_converted_and_says_so(model_folder: Path, tmp_path: Path) -> None:
    from convert import convert_serving

    with pytest.raises(ConversionError, match="takes texts, by faster_tokenizer, and can't be converted"):
        convert_serving(text_models.texts(model_folder), tmp_path / "out")
