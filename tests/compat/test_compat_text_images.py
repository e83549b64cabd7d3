"""Text in images with `paddle_serving_app.reader`: probabilities to boxes, crops, classes to text."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest

from paddle_serving_app.reader import (
    DBPostProcess,
    FilterBoxes,
    GetRotateCropImage,
    OCRReader,
    SortedBoxes,
)
from paddle_serving_app.reader.vision_extra import opencv

PARAMS = {"thresh": 0.3, "box_thresh": 0.6, "max_candidates": 1000, "unclip_ratio": 1.5, "min_size": 3}
FETCH = "save_infer_model/scale_0.tmp_1"


def probability_map(*boxes: tuple[int, int, int, int], value: float = 0.9) -> np.ndarray:
    """(1, 1, 160, 320) with rectangles (left, top, right, bottom)."""
    result = np.zeros((1, 1, 160, 320), np.float32)
    for left, top, right, bottom in boxes:
        result[0, 0, top : bottom + 1, left : right + 1] = value
    return result


def test_a_box_grows_by_the_unclip_ratio_and_is_told_in_the_images_own_pixels() -> None:
    (boxes,) = DBPostProcess(PARAMS)(probability_map((100, 50, 199, 69)), [(0.5, 0.5)])
    # 99 x 19 pixels, grown by 99 * 19 * 1.5 / (2 * (99 + 19)) = 11.96 on each side; the image is twice as
    # large.
    assert boxes.shape == (1, 4, 2) and boxes.dtype == np.int16
    np.testing.assert_allclose(boxes[0], 2 * np.array([[88, 38], [211, 38], [211, 81], [88, 81]]), atol=4)


def test_faint_and_tiny_boxes_are_left_out_and_no_box_is_an_empty_list() -> None:
    faint = probability_map((20, 20, 90, 40), value=0.5)
    tiny = probability_map((200, 100, 201, 101))
    both = np.concatenate([np.maximum(faint, tiny), probability_map((20, 20, 90, 40))])
    nothing, found = DBPostProcess(PARAMS)(both, [(1.0, 1.0), (1.0, 1.0)])
    assert nothing == [] and len(found) == 1


def test_boxes_are_ordered_clipped_filtered_and_read_line_by_line() -> None:
    right = [[180, 52], [180, 20], [120, 20], [120, 52]]
    left = [[-5, 25], [100, 25], [100, 57], [-5, 57]]
    below = [[10, 90], [90, 90], [90, 120], [10, 120]]
    small = [[10, 90], [18, 90], [18, 120], [10, 120]]
    kept = FilterBoxes(10, 10)(np.array([below, right, small, left]), [160, 170, 3])
    assert kept.dtype == np.float32 and len(kept) == 3
    boxes = [box.tolist() for box in SortedBoxes()(kept)]
    assert boxes == [
        [[0, 25], [100, 25], [100, 57], [0, 57]],
        [[120, 20], [169, 20], [169, 52], [120, 52]],
        [[10, 90], [90, 90], [90, 120], [10, 120]],
    ]
    assert FilterBoxes(10, 10)([], [160, 170, 3]).shape == (0,) and SortedBoxes()(np.array([])) == []


def test_a_crop_is_turned_upright_and_the_box_stays_as_it_was() -> None:
    image = np.zeros((120, 200, 3), np.uint8)
    corners = cv2.boxPoints(((100, 60), (80, 20), 30)).astype(np.float32)
    cv2.fillPoly(image, [corners.astype(np.int32)], (10, 200, 30))
    box = FilterBoxes(1, 1)(corners[None], image.shape)[0]
    before = box.copy()
    crop = GetRotateCropImage()(image, box)
    assert abs(crop.shape[1] - 80) <= 2 and abs(crop.shape[0] - 20) <= 2
    assert np.median(crop.reshape(-1, 3), axis=0).tolist() == [10, 200, 30]
    assert np.array_equal(box, before)


def test_a_crop_has_the_grey_levels_of_opencv_4() -> None:
    y, x = np.mgrid[:40, :60]
    image = np.stack([x * 7 % 256, y * 6 % 256, x * y % 256], -1).astype(np.uint8)
    crop = GetRotateCropImage()(image, np.array([[5, 7], [25, 3], [26, 9], [6, 13]], np.float32))
    assert crop[..., 2].tolist() == [  # as paddle_serving_app 0.9.0 has them with OpenCV 4.6
        [35, 41, 46, 51, 56, 60, 64, 67, 70, 73, 75, 77, 78, 79, 80, 80, 80, 79, 78, 77],
        [41, 48, 54, 60, 66, 71, 76, 80, 84, 88, 91, 94, 96, 98, 99, 101, 102, 102, 102, 101],
        [48, 56, 63, 70, 77, 83, 89, 94, 99, 103, 107, 111, 114, 118, 120, 122, 124, 125, 126, 126],
        [55, 64, 72, 80, 87, 95, 101, 107, 113, 119, 124, 129, 133, 137, 140, 144, 146, 148, 151, 152],
        [62, 72, 81, 90, 98, 107, 114, 121, 128, 135, 141, 147, 152, 157, 161, 165, 169, 172, 175, 177],
        [70, 81, 91, 101, 110, 119, 128, 136, 144, 151, 158, 165, 171, 177, 182, 188, 192, 196, 200, 203],
    ]


def test_opencv_5_is_warned_of_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(cv2, "__version__", "5.0.0")
    opencv.cache_clear()
    assert opencv() is opencv() is cv2
    (told,) = caplog.messages
    assert told.startswith("OpenCV 5.0.0 is installed") and told.endswith("'./compat[vision]'")
    opencv.cache_clear()


def test_a_high_crop_is_laid_down() -> None:
    image = np.random.default_rng(1).integers(0, 256, (90, 60, 3), dtype=np.uint8)
    box = np.array([[10, 10], [30, 10], [30, 80], [10, 80]], np.float32)
    crop = GetRotateCropImage()(image, box)
    assert crop.shape == (20, 70, 3)
    assert np.array_equal(crop, np.rot90(image[10:80, 10:30]))


@pytest.fixture
def dictionary(tmp_path: Path) -> Path:
    path = tmp_path / "keys.txt"
    path.write_text("a\nb\n中\n", "utf-8")
    return path


def test_crops_are_as_wide_as_the_widest_of_their_batch(dictionary: Path) -> None:
    crop = np.full((20, 40, 3), 255, np.uint8)
    feed = OCRReader(char_dict_path=dictionary).resize_norm_img(crop, 5.0)
    assert feed.shape == (3, 32, 160) and feed.dtype == np.float32
    assert (feed[:, :, :64] == 1.0).all() and (feed[:, :, 64:] == 0.0).all()


def test_ctc_classes_become_text_with_its_mean_probability(dictionary: Path) -> None:
    steps = [1, 1, 0, 1, 3, 4, 2]  # "blank" is 0, then the dictionary, then a space
    scores = np.array([0.5, 0.9, 1.0, 0.75, 0.5, 0.25, 1.0], np.float32)
    probabilities = np.zeros((2, 7, 5), np.float32)
    probabilities[0, np.arange(7), steps] = scores
    probabilities[1, :, 0] = 1
    reader = OCRReader(char_dict_path=dictionary)
    (text, score), (nothing, unknown) = reader.postprocess_ocrv2({FETCH: probabilities}, with_score=True)
    assert (text, float(score)) == ("aa中 b", pytest.approx(np.mean([0.5, 0.75, 0.5, 0.25, 1.0])))
    assert nothing == "" and np.isnan(unknown)


def test_a_dictionary_smaller_than_the_model_is_told(dictionary: Path) -> None:
    probabilities = np.eye(9, dtype=np.float32)[None]
    with pytest.raises(ValueError, match=r"answers class 8, but .*keys.txt has 5 classes"):
        OCRReader(char_dict_path=dictionary).postprocess_ocrv2({FETCH: probabilities})


def test_models_of_version_1_answer_with_lod(dictionary: Path) -> None:
    outputs = {
        "ctc_greedy_decoder_0.tmp_0": np.array([[0], [2], [1]]),
        "ctc_greedy_decoder_0.tmp_0.lod": [0, 2, 3],
        "softmax_0.tmp_0": np.array([[0.5, 0, 0, 0.1], [0, 0, 0, 1], [0, 0.25, 0, 0]], np.float32),
        "softmax_0.tmp_0.lod": [0, 2, 3],
    }
    reader = OCRReader(char_dict_path=dictionary)
    assert reader.postprocess(outputs) == [["a中"], ["b"]]
    assert reader.postprocess(outputs, with_score=True) == [["a中", 0.5], ["b", 0.25]]
