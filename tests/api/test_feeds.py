"""Inputs of a request, read as the arrays that a model's feeds want."""

from __future__ import annotations

import json

import numpy as np
import pytest

from pipeline.api.examples import example_body
from pipeline.api.feeds import read_feeds
from pipeline.errors import InvalidInput
from pipeline.models.serving_model import Variable

PIXELS = Variable("pixels", "pixels", "uint8", (-1, 2))
HALVES = Variable("halves", "halves", "bfloat16", (-1, 2))
IDS = Variable("input_ids", "input_ids", "int64", (-1, -1))
MASK = Variable("mask", "mask", "int64", (-1, -1))
IMAGE = Variable("image", "image", "float32", (-1, 3, -1, -1))
WORD = Variable("word", "word", "string", (-1, 1))
EVERY_KIND = [
    PIXELS,
    HALVES,
    IDS,
    IMAGE,
    WORD,
    Variable("frames", "frames", "float32", (-1, -1, 6)),
    Variable("board", "board", "bool", (8, 4)),
    Variable("photo", "photo", "float32", (-1, 3, 224, 224)),
    Variable("words", "words", "int64", (-1, 1), is_lod=True),
    Variable("short", "short", "int64", (-1, -1), longest=(1, 2)),
    Variable("rate", "rate", "float64", ()),
]


class TestFeeds:
    def test_a_feed_of_floats_takes_integers(self) -> None:
        array = read_feeds({"image": "[[[[1]], [[2]], [[3]]]]"}, [IMAGE])["image"]
        assert array.dtype == np.float32 and array.ravel().tolist() == [1.0, 2.0, 3.0]

    def test_a_feed_of_bytes_takes_what_fits_alone(self) -> None:
        assert read_feeds({"pixels": "[[0, 255]]"}, [PIXELS])["pixels"].dtype == np.uint8
        with pytest.raises(InvalidInput, match="'pixels' holds 256, which is no uint8"):
            read_feeds({"pixels": "[[0, 256]]"}, [PIXELS])

    def test_floats_too_large_are_refused(self) -> None:
        with pytest.raises(InvalidInput, match=r"'image' holds 1e\+300, which is no float32"):
            read_feeds({"image": "[[[[1e300]], [[2]], [[3]]]]"}, [IMAGE])

    @pytest.mark.parametrize(
        "array", [np.array([[3, 200]]), np.array([[3.0, 200.0]], "float32"), np.eye(2) > 0]
    )
    def test_arrays_as_numpy_prints_them_are_taken(self, array: np.ndarray) -> None:
        read = read_feeds({"pixels": repr(array)}, [PIXELS])["pixels"]
        assert np.array_equal(read, array)

    def test_numbers_that_are_not_finite_are_taken_as_numpy_prints_them(self) -> None:
        image = np.array([[[[np.nan]], [[np.inf]], [[-np.inf]]]], "float32")
        assert np.array_equal(read_feeds({"image": repr(image)}, [IMAGE])["image"], image, equal_nan=True)

    def test_an_array_that_numpy_shortened_is_refused_with_the_way_to_send_it(self) -> None:
        with pytest.raises(InvalidInput, match=r"'input_ids' was shortened .* pack_tensor_format=True"):
            read_feeds({"input_ids": repr(np.zeros((1, 2000), np.int64))}, [IDS])

    def test_numbers_for_bfloat16_become_its_bits(self) -> None:
        read = read_feeds({"halves": "[[1, -2.5]]"}, [HALVES])["halves"]
        assert (read.dtype, read.tolist()) == (np.uint16, [[0x3F80, 0xC020]])
        bits = np.zeros((1, 2), np.uint16)
        assert read_feeds({"halves": bits}, [HALVES])["halves"] is bits

    @pytest.mark.parametrize("given", ["text", "[1]", "[]", '["a", ["b"]]', "[" * 50_000])
    def test_what_is_no_list_of_texts_is_no_feed_of_strings(self, given: str) -> None:
        assert read_feeds({"word": '[["a"], ["b"]]'}, [WORD])["word"].tolist() == [["a"], ["b"]]
        with pytest.raises(InvalidInput, match=r"'word' is not a list of texts .* \[\[\"text\"\]\]"):
            read_feeds({"word": given}, [WORD])

    @pytest.mark.parametrize("variable", EVERY_KIND, ids=lambda variable: variable.alias)
    def test_the_example_of_every_kind_of_feed_is_read(self, variable: Variable) -> None:
        example = json.loads(example_body([variable]))
        read = read_feeds(dict(zip(example["key"], example["value"], strict=True)), [variable])
        assert read[variable.alias].ndim == len(variable.shape)
        with pytest.raises(InvalidInput) as refused:
            read_feeds({}, [variable])
        assert "..." not in refused.value.message
        assert len(refused.value.message) < 600

    def test_feeds_with_different_numbers_of_rows_are_refused(self) -> None:
        with pytest.raises(InvalidInput, match=r"differ in rows: input_ids \[2\], mask \[1\]"):
            read_feeds({"input_ids": "[[1], [2]]", "mask": "[[1]]"}, [IDS, MASK])

    def test_feeds_of_a_model_without_batches_have_rows_of_their_own(self) -> None:
        state = Variable("state", "state", "float32", (2, -1, 4))
        rate = Variable("rate", "rate", "int64", ())
        variables = [IDS, state, rate]
        example = json.loads(example_body(variables))
        read = read_feeds(dict(zip(example["key"], example["value"], strict=True)), variables)
        assert [array.shape for array in read.values()] == [(1, 3), (2, 1, 4), ()]

    def test_feeds_may_differ_in_length_unless_they_are_alike(self) -> None:
        inputs = {"input_ids": "[[1, 2]]", "mask": "[[1]]"}
        assert read_feeds(inputs, [IDS, MASK])["mask"].shape == (1, 1)
        with pytest.raises(InvalidInput, match=r"differ in shape: input_ids \[1, 2\], mask \[1, 1\]"):
            read_feeds(inputs, [IDS, MASK], alike=["input_ids", "mask"])
