"""Model files and their description: what a Paddle predictor takes from them and refuses at start."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from pipeline.engines import create_predictor, input_examples
from pipeline.engines.feeds import check_feeds
from pipeline.engines.paddle.program import find_row_finder
from pipeline.errors import ConfigError, InvalidInput
from pipeline.models.serving_model import ServingModel, Variable, load_serving_model
from tests.support import models, vision_models
from tests.support.models import local_conf


@pytest.mark.parametrize("kind", ["classifier", "classifier_pdmodel"])
@pytest.mark.parametrize("stored", [(-1,), (-1, 128)], ids=["left out", "of one length"])
def test_axes_that_the_description_has_wrong_are_taken_from_the_program(
    model_folder: Path, kind: str, stored: tuple[int, ...]
) -> None:
    model = load_serving_model(getattr(models, kind)(model_folder))
    # Older conversions of Paddle Serving store [-1, -1] as no shape at all.
    feeds = tuple(dataclasses.replace(variable, shape=stored) for variable in model.feeds)
    predictor = create_predictor(dataclasses.replace(model, feeds=feeds), local_conf())
    assert predictor.feeds == model.feeds
    assert predictor.run(input_examples(predictor, rows=2, length=5))["logits"].shape == (2, 3)


def test_a_description_of_another_model_is_refused_at_start(classifier: ServingModel) -> None:
    fewer = dataclasses.replace(classifier, feeds=classifier.feeds[:2])
    with pytest.raises(ConfigError, match="feed 'attention_mask' is only in one of them"):
        create_predictor(fewer, local_conf())
    renamed = dataclasses.replace(classifier.fetches[0], name="softmax_0.tmp_0", alias="softmax")
    more = dataclasses.replace(classifier, fetches=(renamed, *classifier.fetches))
    with pytest.raises(ConfigError, match=r"fetch 'softmax_0\.tmp_0' .* the program has fetch_name_0"):
        create_predictor(more, local_conf())


def test_fetches_under_other_names_are_taken_in_the_programs_order(
    classifier: ServingModel, caplog: pytest.LogCaptureFixture
) -> None:
    renamed = dataclasses.replace(classifier.fetches[0], name="softmax_0.tmp_0")
    predictor = create_predictor(dataclasses.replace(classifier, fetches=(renamed,)), local_conf())
    assert predictor.run(input_examples(predictor, rows=2, length=5))["logits"].shape == (2, 3)
    assert "taken in order: softmax_0.tmp_0 is fetch_name_0" in caplog.text


@pytest.mark.parametrize("kind", ["images", "hidden_states"])
def test_a_size_in_the_description_binds_only_where_the_program_has_it(model_folder: Path, kind: str) -> None:
    model = load_serving_model(getattr(models, kind)(model_folder))
    program_shapes = [variable.shape for variable in model.feeds]
    told = [tuple(64 if dim == -1 else dim for dim in shape) for shape in program_shapes]
    feeds = [
        dataclasses.replace(v, shape=(-1, *shape[1:])) for v, shape in zip(model.feeds, told, strict=True)
    ]
    predictor = create_predictor(dataclasses.replace(model, feeds=tuple(feeds)), local_conf())
    assert [variable.shape for variable in predictor.feeds] == program_shapes


def test_the_engine_judges_an_images_sides_and_the_description_its_channels() -> None:
    declared = [Variable("image", "image", "float32", (-1, 3, 608, 608))]
    assert check_feeds(declared, {"image": np.zeros((2, 3, 640, 480))})["image"].shape == (2, 3, 640, 480)
    with pytest.raises(InvalidInput, match=r"has shape \(2, 1, 608, 608\)"):
        check_feeds(declared, {"image": np.zeros((2, 1, 608, 608))})


def test_a_number_of_numpy_is_a_feed_without_axes() -> None:
    declared = [Variable("sr", "sr", "int64", ())]
    array = check_feeds(declared, {"sr": np.int64(16000)})["sr"]
    assert (array.shape, array.item()) == ((), 16000)


def test_what_a_program_finds_is_not_merged_with_other_requests(
    model_folder: Path, tmp_path: Path, classifier: ServingModel, pdmodel: ServingModel
) -> None:
    detector = load_serving_model(vision_models.box_detector(model_folder))
    assert not create_predictor(detector, local_conf()).merges
    assert create_predictor(classifier, local_conf()).merges
    assert find_row_finder(detector.program) == "multiclass_nms3"
    # A .pdmodel also lists the versions of operators that it does not have, matrix_nms among them.
    assert b"matrix_nms" in pdmodel.program.read_bytes() and find_row_finder(pdmodel.program) is None
    old = tmp_path / "old.pdmodel"
    old.write_bytes(pdmodel.program.read_bytes().replace(b"\x1a\x09matmul_v2", b"\x1a\x0bwhere_index"))
    assert find_row_finder(old) == "where_index"


@pytest.mark.parametrize("kind", ["classifier", "classifier_pdmodel"])
@pytest.mark.parametrize("damage", [b"", b"not a program", b'{"base_code":{"magic":"pir"}}'])
def test_a_damaged_program_is_refused_in_one_sentence(
    model_folder: Path, tmp_path: Path, kind: str, damage: bytes
) -> None:
    model = load_serving_model(getattr(models, kind)(model_folder))
    program = tmp_path / model.program.name
    program.write_bytes(damage)
    with pytest.raises(
        ConfigError, match=r"is not a Paddle program .* copy or export the model again"
    ) as caught:
        create_predictor(dataclasses.replace(model, program=program), local_conf())
    assert "\n" not in caught.value.message


@pytest.mark.parametrize("kind", ["classifier", "classifier_pdmodel"])
def test_a_damaged_or_missing_parameter_file_is_refused(
    model_folder: Path, tmp_path: Path, kind: str
) -> None:
    model = load_serving_model(getattr(models, kind)(model_folder))
    assert model.params is not None
    whole = model.params.read_bytes()
    cut = tmp_path / "cut.pdiparams"
    for data in (b"", whole[:-1], whole[: len(whole) // 2], b"\xff" * len(whole)):
        cut.write_bytes(data)
        with pytest.raises(ConfigError) as caught:
            create_predictor(dataclasses.replace(model, params=cut), local_conf())
        assert "\n" not in caught.value.message
    with pytest.raises(ConfigError, match=r"parameters, but no \.pdiparams is beside it"):
        create_predictor(dataclasses.replace(model, params=None), local_conf())
