"""Detection and segmentation with `paddle_serving_app.reader`: rows to boxes, files drawn."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from paddle_serving_app.reader import BlazeFacePostprocess, RCNNPostprocess, SegPostprocess

ROWS = np.array([[1, 0.75, 10, 20, 29, 59], [0, 0.25, 0, 0, 9, 9]], np.float32)
BOXES = [
    {"category_id": 1, "bbox": [10.0, 20.0, 20.0, 40.0], "score": 0.75},
    {"category_id": 0, "bbox": [0.0, 0.0, 10.0, 10.0], "score": 0.25},
]


@pytest.fixture
def labels(tmp_path: Path) -> Path:
    path = tmp_path / "label_list.txt"
    path.write_text("cat\ndog\n", "utf-8")
    return path


@pytest.mark.parametrize("lod", [{}, {"boxes.lod": np.array([0, 2], np.int32)}])
def test_rows_become_boxes_with_and_without_lod(labels: Path, tmp_path: Path, lod: dict[str, Any]) -> None:
    read = RCNNPostprocess(str(labels), str(tmp_path / "output"))
    assert read({"boxes": ROWS} | lod, visualize=False) == BOXES
    assert not (tmp_path / "output").exists()


@pytest.mark.parametrize("rows", [np.zeros((0, 6)), np.array([[-1.0]]), np.array([[-1.0, 0, 0, 0, 0, 0]])])
def test_nothing_found_is_an_empty_list(labels: Path, tmp_path: Path, rows: Any) -> None:
    assert RCNNPostprocess(str(labels), str(tmp_path))({"boxes": rows}, visualize=False) == []


@pytest.mark.parametrize(
    ("fetches", "message"),
    [
        ({"boxes": np.array([[2, 0.5, 0, 0, 1, 1]])}, "class 2, but .*label_list.txt has 2 labels"),
        ({"boxes": ROWS, "count": np.array([2])}, r"'count' has shape \(1,\); boxes have \(boxes, 6\)"),
        ({"image": "a.jpg"}, "the fetches have no boxes"),
    ],
)
def test_fetches_without_boxes_are_told(
    labels: Path, tmp_path: Path, fetches: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        RCNNPostprocess(str(labels), str(tmp_path))(fetches, visualize=False)


def test_boxes_of_half_and_more_are_drawn_beside_the_list(labels: Path, tmp_path: Path) -> None:
    image = tmp_path / "a.png"
    cv2.imwrite(str(image), np.full((80, 60, 3), 255, np.uint8))
    output = tmp_path / "output"
    RCNNPostprocess(str(labels), str(output))({"image": str(image), "boxes": ROWS})
    assert json.loads((output / "bbox.json").read_text("utf-8")) == BOXES
    drawn = cv2.imread(str(output / "a.png"))
    assert drawn[40, 10].tolist() == [0, 0, 128]  # the second class's colour, red
    assert drawn[5, 5].tolist() == [255, 255, 255]


def test_faces_are_told_in_parts_of_the_image(labels: Path, tmp_path: Path) -> None:
    rows = np.array([[0, 0.5, -0.25, 0.25, 0.5, 0.75]], np.float32)
    fetches = {"boxes": rows, "im_shape": np.array([100, 200])}
    (face,) = BlazeFacePostprocess(str(labels), str(tmp_path))(fetches, visualize=False)
    assert face["bbox"] == [0.0, 25.0, 100.0, 50.0]


def test_a_mask_is_written_as_it_is_and_in_colours(tmp_path: Path) -> None:
    image = tmp_path / "a.b.jpg"
    cv2.imwrite(str(image), np.zeros((40, 60, 3), np.uint8))
    mask = np.ones((1, 512, 512), np.int64)
    SegPostprocess(2)({"filename": str(image), "output": mask})
    written = cv2.imread(str(tmp_path / "a.b_jpg_mask.png"), cv2.IMREAD_UNCHANGED)
    assert written.shape == (512, 512) and (written == 1).all()
    colored = cv2.imread(str(tmp_path / "a.b_jpg_result.png"))
    assert colored.shape == (40, 60, 3) and (colored == [128, 0, 0]).all()
    with pytest.raises(ValueError, match="SegPostprocess takes"):
        SegPostprocess(2)({"output": mask})


def test_what_draws_for_clients_of_the_cpp_server_says_what_to_use() -> None:
    with pytest.raises(ImportError, match=r"pddet\.Detection belongs to .*; use DetectionSequential"):
        from paddle_serving_app.reader.pddet import Detection  # noqa: F401
