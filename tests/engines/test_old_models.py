"""Models of Paddle 1: feeds of sequences with their offsets, and weights in a file each."""

from __future__ import annotations

import dataclasses
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from pipeline.engines import Predictor, create_predictor
from pipeline.errors import ConfigError, InvalidInput, UnusableFeed
from pipeline.models.serving_model import load_serving_model
from tests.support import models, old_models
from tests.support.models import local_conf
from tests.support.service_process import APPS, ServiceProcess

WORDS = np.array([[1], [2], [3], [4], [5]])


@pytest.fixture(scope="module")
def bag_of_words(model_folder: Path) -> Path:
    return old_models.bag_of_words(model_folder)


@pytest.fixture(scope="module")
def predictor(bag_of_words: Path) -> Predictor:
    return create_predictor(load_serving_model(bag_of_words), local_conf())


@pytest.mark.parametrize(
    ("offsets", "expected"),
    [([0, 3, 5], [[6.5, 3.0], [9.5, 2.0]]), ([0, 5], [[15.5, 5.0]]), ([[0, 5]], [[15.5, 5.0]])],
    ids=["two sequences", "one", "one, as a batch of requests has it"],
)
def test_the_rows_of_a_ragged_feed_belong_to_sequences_as_its_offsets_say(
    predictor: Predictor, offsets: object, expected: list[list[float]]
) -> None:
    prediction = predictor.run({"words": WORDS, "words.lod": np.array(offsets)})["prediction"]
    assert prediction.tolist() == expected


@pytest.mark.parametrize(
    "offsets",
    [None, [], [0], [0, 3], [1, 5], [0, 4, 3, 5], [0.0, 5.0], ["0", "5"], [0, -3, 5], [0, 5, 9]],
    ids=str,
)
def test_offsets_that_do_not_fit_are_refused_with_their_name(predictor: Predictor, offsets: object) -> None:
    feeds = {"words": WORDS} | ({} if offsets is None else {"words.lod": np.array(offsets)})
    with pytest.raises(InvalidInput, match=r"'words\.lod' has to tell .* \[0, 5\] for one sequence"):
        predictor.run(feeds)


def test_an_output_of_sequences_comes_with_its_offsets(model_folder: Path) -> None:
    detector = create_predictor(load_serving_model(old_models.detector(model_folder)), local_conf())
    first, near, far = [0.0, 0.0, 1.0, 1.0], [0.0, 0.0, 1.0, 0.9], [5.0, 5.0, 6.0, 6.0]
    boxes = np.array([[first, near, far], [first, near, near]], np.float32)
    scores = np.array([[[0.5, 0.25, 0.75]], [[0.5, 0.25, 0.25]]], np.float32)
    fetches = detector.run({"boxes": boxes, "scores": scores})
    assert fetches["found"].tolist() == [[0, 0.75, *far], [0, 0.5, *first], [0, 0.5, *first]]
    assert (fetches["found.lod"].tolist(), fetches["found.lod"].dtype) == ([0, 2, 3], np.int32)


def test_offsets_of_a_feed_that_is_not_ragged_have_no_effect(model_folder: Path) -> None:
    images = create_predictor(load_serving_model(models.images(model_folder)), local_conf())
    image = np.ones((1, 3, 2, 2), np.float32)
    result = images.run({"image": image, "image.lod": np.array([0, 1])})
    assert np.array_equal(result["doubled"], images.run({"image": image})["doubled"])


def test_a_description_that_calls_a_dense_feed_ragged_is_corrected_by_the_program(model_folder: Path) -> None:
    model = load_serving_model(models.images(model_folder))
    ragged = dataclasses.replace(model.feeds[0], shape=(-1,), is_lod=True)
    predictor = create_predictor(dataclasses.replace(model, feeds=(ragged,)), local_conf())
    assert (predictor.feeds[0].shape, predictor.feeds[0].is_lod) == (model.feeds[0].shape, False)


def test_a_weight_without_its_file_or_with_half_of_it_is_told_at_start(
    bag_of_words: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(bag_of_words, folder)
    table = (folder / "table").read_bytes()
    (folder / "table").write_bytes(table[:-1])
    with pytest.raises(ConfigError, match=r"table holds no whole tensor: copy or export the model again"):
        create_predictor(load_serving_model(folder), local_conf())
    (folder / "table").unlink()
    with pytest.raises(ConfigError, match="has the weight table, but neither table nor __params__"):
        create_predictor(load_serving_model(folder), local_conf())


def test_requests_with_sequences_are_answered_each_its_own_under_load(bag_of_words: Path) -> None:
    conf = {"client_type": "local_predictor", "model_config": str(bag_of_words)}
    config = {"op": {"words": {"batch_size": 8, "local_service_conf": conf}}}
    with ServiceProcess(APPS / "sequences.py", config, name="sequences") as service:

        def ask(number: int) -> dict[str, str]:
            ids = range(1, 2 + number % 7)
            return service.predict({"words": " ".join(map(str, ids))})

        with ThreadPoolExecutor(8) as clients:
            answers = list(clients.map(ask, range(64)))
        assert service.ask({"words": ""})["err_no"] == UnusableFeed.err_no
    for number, answer in enumerate(answers):
        count = 1 + number % 7
        expected = np.array([[count * (count + 1) / 2 + 0.5, count]], np.float32)
        assert answer == {"prediction": repr(expected)}
