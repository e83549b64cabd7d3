"""Small real Paddle models through `create_predictor`: what they compute, cast and refuse."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.engines import Predictor, create_predictor, input_examples
from pipeline.errors import ConfigError, InvalidInput, ModelFailed, UnusableFeed
from pipeline.models.serving_model import ServingModel, load_serving_model
from tests.support import models
from tests.support.models import local_conf

Array = np.ndarray[Any, np.dtype[Any]]


@pytest.fixture(scope="module")
def predictor(classifier: ServingModel) -> Predictor:
    return create_predictor(classifier, local_conf())


def texts(rows: list[list[int]], length: int | None = None) -> dict[str, Array]:
    """Feeds of rows of ids, padded with id 0 to the longest row or to `length`."""
    width = length or max(map(len, rows))
    ids = np.array([row + [0] * (width - len(row)) for row in rows], dtype=np.int64)
    mask = np.array([[1] * len(row) + [0] * (width - len(row)) for row in rows], dtype=np.int64)
    return {"input_ids": ids, "token_type_ids": np.zeros_like(ids), "attention_mask": mask}


def expected_images(image: Array) -> Array:
    return image * 2 + np.arange(3, dtype=np.float32).reshape(1, 3, 1, 1)


@pytest.mark.parametrize("use_mkldnn", [None, True, False], ids=["default", "onednn", "native"])
def test_an_image_is_computed_exactly_at_any_size(model_folder: Path, use_mkldnn: bool | None) -> None:
    predictor = create_predictor(
        load_serving_model(models.images(model_folder)), local_conf(use_mkldnn=use_mkldnn)
    )
    for shape in [(1, 3, 4, 5), (2, 3, 9, 1), (1, 3, 4, 5)]:
        image = np.random.default_rng(0).random(shape, dtype=np.float32)
        np.testing.assert_allclose(
            predictor.run({"image": image})["doubled"], expected_images(image), rtol=1e-6
        )


@pytest.mark.parametrize("use_mkldnn", [None, True, False], ids=["default", "onednn", "native"])
def test_a_program_that_onednn_can_not_run_is_run_without(
    model_folder: Path, use_mkldnn: bool | None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    model = load_serving_model(models.enlarged(model_folder))
    predictor = create_predictor(model, local_conf(use_mkldnn=use_mkldnn))
    image = np.random.default_rng(0).random((2, 3, 4, 5), dtype=np.float32)
    expected = image.repeat(2, axis=2).repeat(2, axis=3)
    np.testing.assert_allclose(predictor.run({"image": image})["enlarged"], expected)
    told = "can't run nearest_interp of" in caplog.text and "with oneDNN; it runs without" in caplog.text
    assert told is bool(use_mkldnn)


@pytest.mark.parametrize("kind", ["pooled", "pooled_pdmodel"])
def test_an_adaptive_pool_is_exact_at_an_odd_size_after_an_even_one(model_folder: Path, kind: str) -> None:
    model = load_serving_model(getattr(models, kind)(model_folder))
    predictor = create_predictor(model, local_conf(use_mkldnn=True, ir_optim=True))
    for width in (30, 32, 30):
        image = np.random.default_rng(0).random((1, 1, 4, width), dtype=np.float32)
        ends = [(part * width // 3, -(-(part + 1) * width // 3)) for part in range(3)]
        expected = [[image[..., start:end].mean() for start, end in ends]]
        np.testing.assert_allclose(predictor.run({"image": image})["logits"], expected, rtol=1e-5)


@pytest.mark.parametrize("use_mkldnn", [True, False], ids=["onednn", "native"])
@pytest.mark.parametrize("kind", ["classifier", "classifier_pdmodel"])
def test_a_row_answers_the_same_alone_padded_and_in_a_batch(
    model_folder: Path, kind: str, use_mkldnn: bool
) -> None:
    model = load_serving_model(getattr(models, kind)(model_folder))
    predictor = create_predictor(model, local_conf(use_mkldnn=use_mkldnn, ir_optim=True))
    names = [variable.alias for variable in model.feeds]

    def logits(feeds: dict[str, Array]) -> Array:
        return predictor.run({name: feeds[name] for name in names})["logits"]

    rows = [[5, 6, 7], [8, 9], [10, 11, 12, 13, 14]]
    alone = np.concatenate([logits(texts([row])) for row in rows])
    assert len(np.unique(alone.round(4))) == alone.size
    np.testing.assert_allclose(logits(texts(rows)), alone, atol=1e-5)
    np.testing.assert_allclose(logits(texts(rows, length=64)), alone, atol=1e-5)


def test_outputs_are_not_overwritten_by_the_next_run(predictor: Predictor) -> None:
    first = predictor.run(texts([[5, 6, 7]]))["logits"]
    kept = first.copy()
    second = predictor.run(texts([[20, 21, 22]]))["logits"]
    np.testing.assert_array_equal(first, kept)
    assert not np.allclose(first, second)


def test_the_fetch_list_selects_by_alias(classifier: ServingModel) -> None:
    predictor = create_predictor(classifier, local_conf(fetch_list=["logits"]))
    assert [variable.alias for variable in predictor.fetches] == ["logits"]
    with pytest.raises(ConfigError, match="fetch_list: the model has no 'probs', only logits"):
        create_predictor(classifier, local_conf(), fetch_list=["probs"])


def test_numbers_are_cast_to_integers_when_nothing_is_lost(predictor: Predictor) -> None:
    feeds = texts([[5, 6, 7]])
    small = {name: array.astype(np.int32) for name, array in feeds.items()}
    small["attention_mask"] = feeds["attention_mask"].astype(bool)
    small["token_type_ids"] = feeds["token_type_ids"].astype(float)  # of np.zeros(shape), say
    np.testing.assert_array_equal(predictor.run(small)["logits"], predictor.run(feeds)["logits"])


def test_numbers_are_cast_to_floats_unless_they_overflow(model_folder: Path) -> None:
    predictor = create_predictor(load_serving_model(models.images(model_folder)), local_conf())
    image = np.full((1, 3, 2, 2), 0.1)
    doubled = predictor.run({"image": image})["doubled"]
    np.testing.assert_allclose(doubled, expected_images(image), rtol=1e-6)
    pixels = np.arange(12, dtype=np.uint8).reshape(1, 3, 2, 2)
    assert np.array_equal(predictor.run({"image": pixels})["doubled"], expected_images(pixels))
    with pytest.raises(InvalidInput, match="feed 'image' is float64 with values beyond float32"):
        predictor.run({"image": image * 1e300})


def test_a_view_with_strides_is_read_as_it_looks(predictor: Predictor) -> None:
    feeds = texts([[5, 6, 7], [8, 9, 10]])
    turned = {name: np.asfortranarray(array) for name, array in feeds.items()}
    np.testing.assert_array_equal(predictor.run(turned)["logits"], predictor.run(feeds)["logits"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"input_ids": np.full((1, 3), 1.5)}, "feed 'input_ids' is float64 with values beyond int64"),
        ({"input_ids": np.array([[1.0, np.nan, 2]])}, "is float64 with values beyond int64"),
        ({"input_ids": np.full((1, 3), 2.0**63)}, "is float64 with values beyond int64"),
        (
            {"input_ids": np.array([["a"]])},
            "feed 'input_ids' is <U1, not all of them numbers; expected int64",
        ),
        (
            {"input_ids": np.full((1, 3), 2**63, np.uint64)},
            "feed 'input_ids' is uint64 with values beyond int64",
        ),
        ({"input_ids": np.ones((0, 3), np.int64)}, "has shape (0, 3) and so no element"),
        ({"input_ids": [[1, 2, 3]]}, "feed 'input_ids' is of type list, expected an ndarray"),
        ({"attention_mask": None}, "feed 'attention_mask' is of type NoneType"),
    ],
)
def test_a_feed_that_does_not_fit_is_named(
    predictor: Predictor, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidInput) as caught:
        predictor.run(texts([[5, 6, 7]]) | change)
    assert message in caught.value.message


def test_a_feed_that_the_model_lacks_is_left_out(predictor: Predictor) -> None:
    feeds = texts([[5, 6, 7]])
    more = feeds | {"scale_factor": np.ones((1, 2))}
    np.testing.assert_array_equal(predictor.run(more)["logits"], predictor.run(feeds)["logits"])


def test_a_misspelt_feed_is_named_beside_the_missing_one(predictor: Predictor) -> None:
    feeds = texts([[5, 6, 7]])
    feeds["input_id"] = feeds.pop("input_ids")
    with pytest.raises(InvalidInput, match=r"'input_ids' is missing .*; the model has no feed 'input_id'"):
        predictor.run(feeds)


def test_a_missing_feed_is_named(predictor: Predictor) -> None:
    feeds = texts([[5, 6, 7]])
    del feeds["token_type_ids"]
    with pytest.raises(InvalidInput, match=r"feed 'token_type_ids' is missing \(int64 \[-1, -1\]\)"):
        predictor.run(feeds)


def test_a_fixed_axis_of_another_length_is_run_where_the_program_runs_it(model_folder: Path) -> None:
    predictor = create_predictor(load_serving_model(models.hidden_states(model_folder)), local_conf())
    assert predictor.run({"input_ids": np.ones((1, 128), np.int64)})["hidden"].shape == (1, 128, 768)
    assert predictor.run({"input_ids": np.ones((1, 127), np.int64)})["hidden"].shape == (1, 127, 768)


@pytest.mark.parametrize("use_mkldnn", [None, True, False], ids=["default", "onednn", "native"])
def test_feeds_of_another_rank_are_run_as_the_program_itself_runs_them(
    model_folder: Path, use_mkldnn: bool | None
) -> None:
    conf = local_conf(use_mkldnn=use_mkldnn)
    linear = create_predictor(load_serving_model(models.linear(model_folder)), conf)
    house = np.arange(13, dtype=np.float32)
    usual = linear.run({"x": house.reshape(1, 13)})["y"]
    for shape in [(1, 1, 13), (13,), (1, 1, 1, 13), (1, 13)]:
        given = linear.run({"x": house.reshape(shape)})["y"]
        assert given.shape == (*shape[:-1], 1)
        np.testing.assert_allclose(given.ravel(), usual.ravel(), rtol=1e-6)
    frames = create_predictor(load_serving_model(models.frames(model_folder)), conf)
    images = np.random.default_rng(0).random((5, 3, 2, 2), np.float32)
    brightness = frames.run({"frames": images})["brightness"]
    np.testing.assert_allclose(brightness, images.sum((1, 2, 3))[:, None], rtol=1e-6)
    np.testing.assert_allclose(frames.run({"frames": images[None]})["brightness"], brightness, rtol=1e-6)
    with pytest.raises(UnusableFeed, match=r"shape \(1, 12\), expected float32 \[-1, 13\], and the program"):
        linear.run({"x": np.ones((1, 12))})


def test_numbers_in_arrays_of_objects_and_of_texts_are_fed(predictor: Predictor) -> None:
    feeds = texts([[5, 6, 7]])
    expected = predictor.run(feeds)["logits"]
    for dtype in (object, str, bytes):
        given = {name: array.astype(dtype) for name, array in feeds.items()}
        np.testing.assert_array_equal(predictor.run(given)["logits"], expected)
    with pytest.raises(InvalidInput, match="object with values beyond int64"):
        predictor.run(feeds | {"input_ids": np.array([[5.5, 6, 7]], object)})


@pytest.mark.parametrize("kind", ["classifier", "classifier_pdmodel"])
def test_a_refusal_of_the_engine_is_one_sentence_and_the_next_run_works(
    model_folder: Path, kind: str
) -> None:
    model = load_serving_model(getattr(models, kind)(model_folder))
    predictor = create_predictor(model, local_conf())
    good = input_examples(model, rows=1, length=3)
    before = predictor.run(good)["logits"]
    with pytest.raises(UnusableFeed, match="feed 'input_ids' holds 64; the model has 0 to 63"):
        predictor.run(good | {"input_ids": np.full((1, 3), models.VOCABULARY, np.int64)})
    with pytest.raises(ModelFailed) as caught:
        predictor.run(good | {"input_ids": np.full((1, 2), 1, np.int64)})
    assert "input_ids [1, 2]" in caught.value.message
    assert "\n" not in caught.value.message
    np.testing.assert_array_equal(predictor.run(good)["logits"], before)


def test_a_closed_predictor_says_so(classifier: ServingModel) -> None:
    predictor = create_predictor(classifier, local_conf())
    predictor.close()
    with pytest.raises(ModelFailed, match="the predictor is closed"):
        predictor.run(texts([[5]]))


def test_examples_for_warm_up_have_the_model_s_shapes_and_dtypes(model_folder: Path) -> None:
    examples = input_examples(load_serving_model(models.images(model_folder)), rows=2, length=7)
    assert {name: (array.shape, array.dtype) for name, array in examples.items()} == {
        "image": ((2, 3, 28, 28), np.float32)
    }


def test_paddle_prints_nothing_of_its_own(model_folder: Path) -> None:
    code = (
        "import sys; from pipeline.config.config_file import LocalServiceConf\n"
        "from pipeline.engines import *;"
        "from pipeline.models.serving_model import load_serving_model;"
        "p = create_predictor(load_serving_model(sys.argv[1]), LocalServiceConf(model_config='-'));"
        "p.run(input_examples(p, 1, 4)); p.close()"
    )
    command = [sys.executable, "-c", code, str(models.classifier_pdmodel(model_folder))]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=quiet_environment())
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_worker_that_ignores_sigterm_still_does_with_a_model_loaded(model_folder: Path) -> None:
    code = (
        "import os, signal, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        "from pipeline.config.config_file import LocalServiceConf; from pipeline.engines import *;"
        "from pipeline.models.serving_model import load_serving_model;"
        "p = create_predictor(load_serving_model(sys.argv[1]), LocalServiceConf(model_config='-'));"
        "os.kill(os.getpid(), signal.SIGTERM); print('still here')"
    )
    command = [sys.executable, "-c", code, str(models.classifier(model_folder))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "still here\n")


def quiet_environment() -> dict[str, str]:
    """This process's own, less what the import of Paddle above has set."""
    return {
        key: value for key, value in os.environ.items() if not key.startswith(("GLOG_", "FLAGS_", "OMP_"))
    }
