"""Image apps in the shape of Paddle Serving's examples, asked by eight clients with images of their own."""

from __future__ import annotations

import ast
import base64
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from tests.support import vision_models
from tests.support.service_process import APPS, ServiceProcess

VISION = APPS / "vision"
COMPAT = {"PYTHONPATH": str(APPS.parent.parent / "compat")}
CLIENTS = 8
CELL = vision_models.CELL


def local(model: Path, **op: Any) -> dict[str, Any]:
    conf = {"client_type": "local_predictor", "model_config": str(model), "device_type": 0, "thread_num": 1}
    return {"local_service_conf": conf | op.pop("conf", {}), **op}


def base64_of(image: np.ndarray) -> str:
    return base64.b64encode(cv2.imencode(".png", image)[1].tobytes()).decode()


def asked_by_clients(ask: Callable[[Any], str], questions: Sequence[Any]) -> list[Any]:
    """The answers in the order of the questions, read as Python literals as the original clients do."""
    with ThreadPoolExecutor(CLIENTS) as clients:
        return [ast.literal_eval(text.replace("nan", "None")) for text in clients.map(ask, questions)]


def test_text_is_read_where_it_stands_whoever_asks_at_the_same_time(
    model_folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "keys.txt").write_text("\n".join("0123456789") + "\n", "utf-8")
    fetch = {"fetch_list": [vision_models.FETCH]}
    config = {
        "dag": {"is_thread_op": False},
        "op": {
            "det": local(vision_models.text_detector(model_folder), conf=fetch, concurrency=2, batch_size=4),
            "rec": local(vision_models.text_recogniser(model_folder), conf=fetch, batch_size=8),
        },
    }
    random = np.random.default_rng(7)
    pages = [
        [random.integers(0, 10, random.integers(1, 4)).tolist() for _ in range(random.integers(1, 4))]
        for _ in range(48)
    ]
    with ServiceProcess(VISION / "ocr.py", config, name="ocr", env=COMPAT, folder=tmp_path) as service:

        def ask(page: list[list[int]]) -> str:
            return service.predict({"image": base64_of(vision_models.text_image(page))})["result"]

        answers = asked_by_clients(ask, pages)
        blank = service.predict({"image": base64_of(np.zeros((96, 160, 3), np.uint8))})
        broken = service.ask({"image": base64.b64encode(b"no image").decode()})
        again = service.predict({"image": base64_of(vision_models.text_image([[3]]))})
    for page, answer in zip(pages, answers, strict=True):
        assert [text for (text, _), _ in answer] == [str(digit) for line in page for digit in line]
        places = [(row, column) for row, line in enumerate(page) for column in range(len(line))]
        for (row, column), (_, box) in zip(places, answer, strict=True):
            middle = np.mean(box, axis=0)
            np.testing.assert_allclose(middle, (100 * column + 50, 60 * row + 30), atol=6)
    assert blank == {"result": "[]"}
    assert broken["err_no"] != 0 and "3" in again["result"]


def test_images_have_their_own_likeliest_class(model_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "labels.txt").write_text("red\ngreen\nblue\n", "utf-8")
    model = vision_models.image_classifier(model_folder)
    config = {"op": {"imagenet": local(model, conf={"fetch_list": ["score"]}, concurrency=2, batch_size=4)}}
    names = ("blue", "green", "red")
    random = np.random.default_rng(8)
    requests = [random.integers(0, 3, random.integers(1, 4)).tolist() for _ in range(48)]
    with ServiceProcess(
        VISION / "classify.py", config, name="imagenet", env=COMPAT, folder=tmp_path
    ) as service:

        def ask(colors: list[int]) -> str:
            images = []
            for color in colors:
                image = np.zeros((240, 300, 3), np.uint8)
                image[:, :, color] = 255
                images.append(base64_of(image))
            answer = service.predict({f"image_{i}": image for i, image in enumerate(images)})
            assert all(0.9 < value <= 1 for value in ast.literal_eval(answer["prob"]))
            return answer["label"]

        answers = asked_by_clients(ask, requests)
    assert answers == [[names[color] for color in colors] for colors in requests]


def test_boxes_are_those_of_the_image_also_when_requests_come_together(
    model_folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "label_list.txt").write_text("red\ngreen\nblue\n", "utf-8")
    model = vision_models.box_detector(model_folder)
    fetch = {"fetch_list": [vision_models.FETCH]}
    config = {"op": {"yolov3": local(model, conf=fetch, concurrency=1, batch_size=8)}}
    random = np.random.default_rng(9)
    # None, one or two boxes each: as many as images in many a pair.
    scenes = [random.choice(16, random.integers(0, 3), replace=False).tolist() for _ in range(48)]
    with ServiceProcess(VISION / "detect.py", config, name="yolov3", env=COMPAT, folder=tmp_path) as service:

        def ask(cells: list[int]) -> str:
            image = np.zeros((320, 320, 3), np.uint8)
            for cell in cells:
                x, y = CELL * (cell % 4), CELL * (cell // 4)
                image[y : y + CELL, x : x + CELL, 1] = 255
            return service.predict({"image": base64_of(image)})["bbox_result"]

        answers = asked_by_clients(ask, scenes)
        log = service.log
    assert "was not warmed up" in log  # images of our making may not suit a model, and the service starts
    for scene, boxes in zip(scenes, answers, strict=True):
        assert {box["category_id"] for box in boxes} <= {1}
        corners = sorted((box["bbox"][1] // CELL, box["bbox"][0] // CELL) for box in boxes)
        assert corners == sorted((cell // 4, cell % 4) for cell in scene)
