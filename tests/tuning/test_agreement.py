"""`precision: auto`: a lower precision counts only where it answers as fp32 does, on enough real rows."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.engines import create_predictor
from pipeline.engines.openvino.openvino_predictor import openvino
from pipeline.errors import ConfigError
from pipeline.models.serving_model import FeedPadding, Padding, Variable, load_serving_model
from pipeline.tuning.real_rows import MIN_ROWS, SAMPLE_FILE, require_agreement, require_equal_answers
from tests.support import models, onnx_models
from tests.support.models import local_conf
from tests.support.service_process import APPS, ServiceProcess

Array = np.ndarray[Any, Any]
CHOSEN = "chosen by its times on this machine: openvino"
HAS_BF16 = "BF16" in openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
NO_BF16 = "precision bf16 needs a CPU with avx512_bf16 or amx_bf16"


class Answers:
    """A predictor that answers with the feed itself, changed."""

    feeds: Any = ()
    fetches = ()
    merges = True

    def __init__(self, change: Any = lambda array: array) -> None:
        self._change = change

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        return {"out": self._change(feeds["x"])}

    def close(self) -> None: ...


def sample(folder: Path, rows: int, *shape: int) -> Path:
    np.savez(folder / SAMPLE_FILE, x=np.random.default_rng(1).random((rows, *shape)).astype("float32"))
    return folder


def others(number: int) -> Any:
    """Turns the classes of the first rows of the first batch around."""
    left = [number]

    def change(array: Array) -> Array:
        array = array.copy()
        count = min(left[0], len(array))
        array[:count] *= -1
        left[0] -= count
        return array

    return change


def test_the_same_classes_on_enough_rows_agree(tmp_path: Path) -> None:
    require_agreement(Answers(), Answers(lambda array: array * 1.01), sample(tmp_path, MIN_ROWS, 5))
    require_agreement(Answers(), Answers(others(1)), tmp_path)  # one of 256 is 0.4 %


@pytest.mark.parametrize(
    ("rows", "shape", "lower", "told"),
    [
        (MIN_ROWS, (5,), others(2), "'out' has the same class as in fp32 in 99.22% of 256 rows"),
        (MIN_ROWS - 1, (5,), None, "has 255 rows, and 256 are the least"),
        (MIN_ROWS, (4, 3), others(1), "'out' is off in a row: cosine -1.0000"),
        (MIN_ROWS, (5,), lambda array: array * np.nan, "has the same class as in fp32"),
    ],
    ids=["two rows of another class", "too few rows", "a row that points elsewhere", "no numbers"],
)
def test_what_does_not_agree_is_refused_with_the_figure(
    tmp_path: Path, rows: int, shape: tuple[int, ...], lower: Any, told: str
) -> None:
    with pytest.raises(ConfigError, match=told.replace(".", r"\.")):
        require_agreement(Answers(), Answers(lower or (lambda array: array)), sample(tmp_path, rows, *shape))


def test_rows_are_judged_without_more_padding_than_they_need_and_at_most_512_of_them(tmp_path: Path) -> None:
    lengths = np.arange(2000) % 37 + 1
    ids = (np.arange(60) < lengths[:, None]).astype("int64")
    np.savez(tmp_path / SAMPLE_FILE, ids=ids, mask=ids, image=np.ones((2000, 3, 2)))
    seen: list[dict[str, tuple[int, ...]]] = []

    class Seeing(Answers):
        def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
            seen.append({name: array.shape for name, array in feeds.items()})
            assert feeds["mask"].sum(axis=1).max() == feeds["mask"].shape[1]
            return {"out": feeds["mask"].sum(axis=1, keepdims=True) * np.array([0.1, 0.9])}

    rules = {"ids": FeedPadding(1), "mask": FeedPadding(1)}
    require_agreement(Seeing(), Seeing(), tmp_path, Padding(rules, {}))
    assert sum(shapes["mask"][0] for shapes in seen) == 2 * 500
    assert {shapes["image"][1:] for shapes in seen} == {(3, 2)}
    assert all(shapes["ids"] == shapes["mask"] for shapes in seen)


def test_onednn_is_run_on_even_lengths_before_odd_ones_and_must_answer_alike(tmp_path: Path) -> None:
    lengths = np.array([3, 8, 5, 4, 8])
    np.savez(tmp_path / SAMPLE_FILE, x=(np.arange(9) < lengths[:, None]).astype("float32"))
    padding = Padding({"x": FeedPadding(1)}, {})
    seen: list[tuple[int, ...]] = []

    def kept_from_an_even_run(array: Array) -> Array:
        seen.append(array.shape)
        even_before = any(not length % 2 for _, length in seen)
        return array * 1.01 if array.shape[1] % 2 and even_before else array

    require_equal_answers(Answers(), Answers(), tmp_path, padding)
    with pytest.raises(ConfigError, match=r"oneDNN answers 'out' otherwise, 0\.01 off, for x \[1, 5\]"):
        require_equal_answers(Answers(), Answers(kept_from_an_even_run), tmp_path, padding)
    assert seen == [(2, 8), (1, 4), (1, 5)]


def test_onednn_has_no_proof_of_rows_of_a_single_size(tmp_path: Path) -> None:
    class OfAnySize(Answers):
        feeds = (Variable("x", "x", "float32", (-1, -1)),)

    class OfOneSize(Answers):
        feeds = (Variable("x", "x", "float32", (-1, 5)),)

    sample(tmp_path, 4, 5)
    with pytest.raises(ConfigError, match="rows of a single size, and oneDNN is proved on two"):
        require_equal_answers(OfAnySize(), OfAnySize(), tmp_path)
    require_equal_answers(OfOneSize(), OfOneSize(), tmp_path)  # in batches of several sizes


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 no archive"])
def test_a_damaged_sample_is_told(tmp_path: Path, content: bytes) -> None:
    (tmp_path / SAMPLE_FILE).write_bytes(content)
    with pytest.raises(ConfigError, match=r"sample\.npz can't be read"):
        require_agreement(Answers(), Answers(), tmp_path)


def started(model: Path, cache: Path, engine: str = "openvino", precision: str = "auto") -> ServiceProcess:
    conf = {"model_config": os.fspath(model), "engine": engine, "precision": precision, "thread_num": 1}
    config = {"op": {"model": {"local_service_conf": conf}}}
    return ServiceProcess(APPS / "model.py", config, env={"XDG_CACHE_HOME": os.fspath(cache)})


def test_without_real_rows_a_service_stays_with_fp32_and_says_why(tmp_path: Path) -> None:
    with started(onnx_models.serving(tmp_path), tmp_path) as service:
        assert f"{CHOSEN} fp32" in service.log
        (reason,) = re.findall(r"openvino bf16: ([^;\]]+)", service.log)
    assert reason.startswith("sample.npz is not beside the model" if HAS_BF16 else NO_BF16)


def test_of_a_precision_that_is_named_only_the_engines_that_have_it_are_candidates(tmp_path: Path) -> None:
    with started(onnx_models.serving(tmp_path), tmp_path, "auto", "bf16") as service:
        (told,) = re.findall(r"chosen by its times on this machine: (.*)", service.log)
        if HAS_BF16:
            assert told.startswith("openvino bf16")
            assert "onnxruntime bf16: precision bf16 is not for ONNX Runtime" in told
        else:
            assert "precision bf16 is not" in service.log or NO_BF16 in service.log


# A model that is faster in bf16 wherever the CPU has that


@pytest.fixture(scope="module")
def real_rows(model_folder: Path) -> Array:
    """Rows of which a model of random weights is as sure as a trained one of its own."""
    rows = np.random.default_rng(5).standard_normal((800, models.WIDE)).astype("float32")
    best = np.sort(in_fp32(models.wide_pdmodel(model_folder), rows), axis=1)
    return rows[np.argsort(best[:, -2] - best[:, -1])[:300]]


def in_fp32(model: Path, rows: Array) -> Array:
    logits = create_predictor(load_serving_model(model, "openvino"), local_conf()).run({"x": rows})["logits"]
    return np.asarray(logits)


def with_sample(model_folder: Path, folder: Path, rows: Array) -> Path:
    """The model, with these rows beside it, in a folder of its own."""
    model = shutil.copytree(models.wide_pdmodel(model_folder), folder / "wide")
    np.savez(model / "serving_server" / SAMPLE_FILE, x=rows)
    return model


def test_a_service_takes_bf16_where_the_cpu_has_it_and_enough_real_rows_have_the_same_class(
    model_folder: Path, real_rows: Array, tmp_path: Path
) -> None:
    model = with_sample(model_folder, tmp_path, real_rows)
    with started(model, tmp_path) as service:
        precision = "bf16" if HAS_BF16 else "fp32"
        assert f"{CHOSEN} {precision}" in service.log
        assert HAS_BF16 or NO_BF16 in service.log
        rate = "paddlewheel_op_chosen_rows_per_second"
        assert service.metric(rate, op="model", engine="openvino", precision=precision) > 0
        asked = real_rows[:8]
        answer = np.array(json.loads(service.predict({"x": json.dumps(asked.tolist())})["logits"]))
    expected = in_fp32(model, asked)
    np.testing.assert_array_equal(answer.argmax(axis=1), expected.argmax(axis=1))
    np.testing.assert_allclose(answer, expected, atol=0.05)
    assert np.allclose(answer, expected, atol=1e-6) is not HAS_BF16  # the numbers are those of what was told


def test_a_service_stays_with_fp32_where_a_row_is_missing_and_takes_bf16_once_it_is_there(
    model_folder: Path, real_rows: Array, tmp_path: Path
) -> None:
    model = with_sample(model_folder, tmp_path, real_rows[: MIN_ROWS - 1])
    with started(model, tmp_path) as service:
        assert f"{CHOSEN} fp32" in service.log
        few = f"{SAMPLE_FILE} has 255 rows, and 256 are the least to judge by"
        assert (few if HAS_BF16 else NO_BF16) in service.log
    np.savez(model / "serving_server" / SAMPLE_FILE, x=real_rows[:MIN_ROWS])
    with started(model, tmp_path) as service:
        assert f"{CHOSEN} {'bf16' if HAS_BF16 else 'fp32'}" in service.log
        assert "rows, and 256 are the least" not in service.log
