"""What shares a batch, how large batches are, and that nobody's answer depends on it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support import models, vision_models
from tests.support.service_process import APPS, ServiceProcess, wait_until


def serve(model: Path, batch_size: int, **env: str) -> ServiceProcess:
    local = {"model_config": str(model), "device_type": 0, "thread_num": 1}
    config = {"op": {"model": {"batch_size": batch_size, "local_service_conf": local}}}
    return ServiceProcess(APPS / "model.py", config, env=env)


@pytest.fixture(scope="module")
def texts(model_folder: Path) -> Iterator[ServiceProcess]:
    with serve(models.classifier(model_folder), 40, MAX_ROWS="10") as service:
        yield service


@pytest.fixture(scope="module")
def boxes(model_folder: Path) -> Iterator[ServiceProcess]:
    with serve(vision_models.box_detector(model_folder), 32) as service:
        yield service


@pytest.fixture(scope="module")
def images(model_folder: Path) -> Iterator[ServiceProcess]:
    with serve(models.images(model_folder), 32) as service:
        yield service


def get_error_text(length: int, seed: int = 0, rows: int = 1) -> dict[str, str]:
    ids = np.random.default_rng(seed).integers(1, models.VOCABULARY, (rows, length)).tolist()
    same = json.dumps(np.ones((rows, length), int).tolist())
    types = json.dumps(np.zeros((rows, length), int).tolist())
    return {"input_ids": json.dumps(ids), "token_type_ids": types, "attention_mask": same}


def image_of(height: int, width: int, seed: int) -> dict[str, str]:
    pixels = np.random.default_rng(seed).integers(0, 99, (1, 3, height, width))
    return {"image": json.dumps(pixels.tolist())}


def queued_together(
    service: ServiceProcess, requests: Sequence[Mapping[str, str]], gate: Path
) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """The answers to requests that were queued together, and the batches that were run: those of one row
    that held the worker busy, twice, among them."""
    before = batch_rows(service)
    own = image_of(2, 2, 0) if "image" in requests[0] else get_error_text(200)
    held = {**(requests[0] if "im_shape" in requests[0] else own), "gate": str(gate)}
    answers = service.ask_together(requests, held, gate)
    after = batch_rows(service)
    return answers, {key: after[key] - before[key] for key in after}


def batch_rows(service: ServiceProcess) -> dict[str, float]:
    name = "paddlewheel_op_batch_rows"
    bounds = {f"to {le}": service.metric(f"{name}_bucket", le=f"{le}.0") for le in (1, 8, 16)}
    return {**bounds, "batches": service.metric(f"{name}_count"), "rows": service.metric(f"{name}_sum")}


def fetched(answer: Mapping[str, Any], name: str) -> np.ndarray:
    assert answer["err_no"] == 0, answer
    (text,) = [value for key, value in zip(answer["key"], answer["value"], strict=True) if key == name]
    return np.array(json.loads(text), "float32")


def test_40_queued_requests_run_as_four_batches_of_the_10_rows_that_the_shapes_allow(
    texts: ServiceProcess, tmp_path: Path
) -> None:
    requests = [get_error_text(12, seed) for seed in range(40)]
    answers, batches = queued_together(texts, requests, tmp_path / "gate")
    assert all(answer["err_no"] == 0 for answer in answers)
    # two of one row, and four of more than 8 rows and at most 10
    assert batches == {"to 1": 2, "to 8": 2, "to 16": 6, "batches": 6, "rows": 42}


def test_texts_of_mixed_lengths_share_batches_and_are_answered_as_alone(
    texts: ServiceProcess, tmp_path: Path
) -> None:
    requests = [
        get_error_text(length, seed) for seed, length in enumerate([1, 60, 3, 17, 5, 9, 33, 2, 41, 8])
    ]
    alone = [fetched(texts.ask(request), "logits") for request in requests]
    together, batches = queued_together(texts, requests, tmp_path / "gate")
    assert batches["batches"] == 3
    for answer, expected in zip(together, alone, strict=True):
        assert np.allclose(fetched(answer, "logits"), expected, atol=1e-5)


def test_a_request_of_more_rows_than_a_batch_may_have_is_answered_whole(texts: ServiceProcess) -> None:
    request = get_error_text(7, seed=3, rows=23)
    rows = [
        {name: json.dumps([json.loads(text)[row]]) for name, text in request.items()} for row in range(23)
    ]
    alone = np.concatenate([fetched(texts.ask(row), "logits") for row in rows])
    before = batch_rows(texts)
    assert np.allclose(fetched(texts.ask(request), "logits"), alone, atol=1e-5)
    after = batch_rows(texts)
    assert (after["batches"] - before["batches"], after["rows"] - before["rows"]) == (3, 23)


@pytest.mark.parametrize(
    ("bad", "told"),
    [
        ({**get_error_text(6), "input_ids": "[[1, 2, 3, 4, 5, 1000000]]"}, "holds 1000000"),
        ({**get_error_text(6), "attention_mask": "[[1, 1]]"}, "attention_mask"),
        ({"input_ids": "[[1]]", "token_type_ids": "[[0]]"}, "'attention_mask' is missing"),
        ({"input_id": "[[1]]", "token_type_ids": "[[0]]", "attention_mask": "[[1]]"}, "no feed 'input_id'"),
        ({**get_error_text(6), "input_ids": "[1, 2]"}, "input_ids"),
        ({**get_error_text(6), "input_ids": "[[]]"}, "input_ids"),
    ],
    ids=["the engine raises", "lengths differ", "a feed missing", "a misspelt feed", "rank", "no element"],
)
def test_feeds_that_the_model_refuses_fail_alone(
    texts: ServiceProcess, tmp_path: Path, bad: dict[str, str], told: str
) -> None:
    workers = texts.worker_pids()
    good = [get_error_text(6, seed) for seed in range(6)]
    alone = [fetched(texts.ask(request), "logits") for request in good]
    answers, _ = queued_together(texts, [*good[:3], bad, *good[3:]], tmp_path / "gate")
    refused = answers.pop(3)
    assert refused["err_no"] != 0
    assert told in refused["err_msg"]
    for answer, expected in zip(answers, alone, strict=True):
        assert np.allclose(fetched(answer, "logits"), expected, atol=1e-5)
    assert texts.worker_pids() == workers


def test_images_of_mixed_sizes_are_answered_exactly_as_alone(images: ServiceProcess, tmp_path: Path) -> None:
    sizes = [(4, 4), (4, 5), (5, 4), (4, 4), (1, 9), (4, 4), (8, 8), (4, 5)]
    requests = [image_of(*size, seed) for seed, size in enumerate(sizes)]
    answers, batches = queued_together(images, requests, tmp_path / "gate")
    assert batches["batches"] == 2 + len(set(sizes))
    for request, answer in zip(requests, answers, strict=True):
        pixels = np.array(json.loads(request["image"]), "float32")
        expected = pixels * 2 + np.arange(3, dtype="float32").reshape(1, 3, 1, 1)
        assert np.array_equal(fetched(answer, "doubled"), expected)
        assert np.array_equal(fetched(images.ask(request), "doubled"), expected)


def test_a_partial_batch_is_held_back_for_auto_batching_timeout_and_a_full_one_is_not(tmp_path: Path) -> None:
    hour_ms = 3_600_000
    config = {"op": {"echo": {"batch_size": 4, "auto_batching_timeout": hour_ms}}}
    with ServiceProcess(APPS / "echo.py", config) as service, ThreadPoolExecutor(4) as pool:
        held = [pool.submit(service.predict, {"number": str(i)}) for i in range(3)]
        wait_until(lambda: service.metric("paddlewheel_op_queue_length") == 3, "three are held back")
        assert service.metric("paddlewheel_op_batch_rows_count") == 0
        full = [service.predict({"number": "3"}), *(one.result() for one in held)]
    assert [answer["rows"] for answer in full] == ["4"] * 4


def test_a_batch_held_back_leaves_when_its_time_is_over() -> None:
    config = {"op": {"echo": {"batch_size": 4, "auto_batching_timeout": 100}}}
    with ServiceProcess(APPS / "echo.py", config) as service:
        assert service.predict({"number": "3"})["rows"] == "1"


def test_shapes_that_only_tensorrt_would_use_need_not_be_right_on_a_cpu(model_folder: Path) -> None:
    """Paddle Serving never looked at them there."""
    with serve(models.classifier(model_folder), 8, MAX_ROWS="0") as service:
        assert fetched(service.ask(get_error_text(6)), "logits").shape == (1, 3)
        assert "set_dynamic_shape_info: dynamic_shape_info" in service.log
        assert "ignored, for the Op does not use TensorRT" in service.log


def test_boxes_stay_with_their_image_where_there_are_as_many_boxes_as_images(
    boxes: ServiceProcess, tmp_path: Path
) -> None:
    def request(*cells: int) -> dict[str, str]:
        image = np.zeros((1, 3, vision_models.CELL, 2 * vision_models.CELL), int)
        for cell in cells:
            image[:, 1, :, vision_models.CELL * cell : vision_models.CELL * (cell + 1)] = 1
        pair = json.dumps([[1, 1]])
        return {"image": json.dumps(image.tolist()), "im_shape": pair, "scale_factor": pair}

    asked = [(0, 1), (), (1,), (0,), (), (0, 1)]
    answers, _ = queued_together(boxes, [request(*cells) for cells in asked], tmp_path / "gate")
    for cells, answer in zip(asked, answers, strict=True):
        rows = fetched(answer, vision_models.FETCH).reshape(-1, 6)
        assert sorted(rows[:, 2] // vision_models.CELL) == list(cells)
