"""ONNX models behind the service: instances share a process, requests of different length a batch."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.engines import Predictor, create_predictor
from pipeline.models.serving_model import load_serving_model
from tests.support import onnx_models
from tests.support.models import local_conf
from tests.support.service_process import APPS, ServiceProcess, wait_until

DTYPES = ("half", "double", "int64", "int32", "int16", "int8", "uint8", "flag")
ROWS = [[number % 64] * (1 + number % 9) for number in range(60)]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return onnx_models.serving(tmp_path_factory.mktemp("onnx"))


def started(model: Path, dag: Mapping[str, Any], **section: Any) -> ServiceProcess:
    conf = {"model_config": os.fspath(model), "thread_num": 1, **section.pop("conf", {})}
    section = {"batch_size": 8, "local_service_conf": conf, **section}
    wait = section.pop("wait", True)
    return ServiceProcess(APPS / "model.py", {"dag": dag, "op": {"model": section}}, wait=wait)


@pytest.fixture(scope="module")
def threads(served: Path) -> Iterator[ServiceProcess]:
    """Three instances of the classifier, as threads."""
    with started(served, {"is_thread_op": True}, concurrency=3) as service:
        wait_until(lambda: service.metric("paddlewheel_op_ready_instances") == 3, "all are ready")
        yield service


def inputs(row: list[int], **more: str) -> dict[str, str]:
    ones = [[1] * len(row)]
    return {
        "input_ids": json.dumps([row]),
        "token_type_ids": json.dumps([[0] * len(row)]),
        "attention_mask": json.dumps(ones),
        **more,
    }


def directly(predictor: Predictor, row: list[int]) -> list[float]:
    feeds = {name: np.array(json.loads(text)) for name, text in inputs(row).items()}
    answer: list[float] = predictor.run(feeds)["logits"][0].tolist()
    return answer


def test_instances_of_an_onnx_model_are_threads_of_one_process(threads: ServiceProcess) -> None:
    assert len(threads.worker_pids()) == 1
    assert "Op model in 1 process of 3 threads" in threads.log
    assert "is warm" in threads.log
    assert threads.metric("paddlewheel_model_info", op="model", version="1", engine="onnxruntime") == 1


def test_texts_of_different_length_share_batches_and_answer_as_alone(
    threads: ServiceProcess, served: Path
) -> None:
    predictor = create_predictor(load_serving_model(served), local_conf())
    with ThreadPoolExecutor(24) as pool:
        answers = list(pool.map(lambda row: threads.predict(inputs(row)), ROWS))
    for row, answer in zip(ROWS, answers, strict=True):
        np.testing.assert_allclose(json.loads(answer["logits"])[0], directly(predictor, row), atol=1e-5)


def test_a_request_that_the_engine_refuses_fails_alone(threads: ServiceProcess, tmp_path: Path) -> None:
    rows = [[1, 2, 3], [64, 1], [5], [7, 7]]
    gate = tmp_path / "gate"
    with ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(threads.ask, inputs(row, gate=str(gate))) for row in rows]
        wait_until(Path(f"{gate}.waiting").exists, "one is in preprocess")
        gate.touch()
        answers = [future.result() for future in asked]
    assert [answer["err_no"] for answer in answers] == [0, 10000, 0, 0]
    assert "feed 'input_ids' holds 64; the model has -64 to 63" in answers[1]["err_msg"]


def test_texts_go_through_a_model_that_takes_them(tmp_path: Path) -> None:
    """Requests of two rows each share a run, and each gets its own back."""
    model = onnx_models.serving(tmp_path, "dtypes", padded=False)
    with started(model, {}) as service, ThreadPoolExecutor(8) as pool:
        numbers = dict.fromkeys(DTYPES, "[[1, 0], [0, 1]]")
        texts = [[["新闻", f"{number}"], ["", "a\n"]] for number in range(16)]
        asked = [{**numbers, "text": json.dumps(text)} for text in texts]
        answers = list(pool.map(service.predict, asked))
    assert [json.loads(answer["text_out"]) for answer in answers] == texts
    assert json.loads(answers[0]["flag_out"]) == [[True, False], [False, True]]


def test_tables_share_runs_whatever_the_model_declares_of_its_label(tmp_path: Path) -> None:
    model, gate = onnx_models.bare(tmp_path, "table"), tmp_path / "gate"
    rows = [{"input": json.dumps([[number, 1, 2, 3]])} for number in range(8)]
    with started(model, {}) as service:
        held = {"input": "[[1, 1, 1, 1]]", "gate": str(gate)}
        answers = service.ask_together(rows, held, gate)
        assert all(len(json.loads(answer["value"][0])) == 1 for answer in answers)
        assert service.metric("paddlewheel_op_batch_rows_sum") == len(rows) + 2
        assert service.metric("paddlewheel_op_batch_rows_count") < len(rows)
        outputs = service.http("/v2/models/model").json["outputs"]
        assert [(one["name"], one["shape"]) for one in outputs] == [
            ("label", [-1]),
            ("probabilities", [-1, 3]),
        ]


@pytest.mark.parametrize(
    ("is_thread_op", "placement", "processes"),
    [(False, "auto", 2), (True, "process", 2), (False, "thread", 1)],
)
def test_placement_overrides_is_thread_op(
    served: Path, is_thread_op: bool, placement: str, processes: int
) -> None:
    with started(served, {"is_thread_op": is_thread_op}, concurrency=2, placement=placement) as service:
        wait_until(lambda: service.metric("paddlewheel_op_ready_instances") == 2, "both are ready")
        assert len(service.worker_pids()) == processes


def test_a_device_that_the_build_lacks_ends_the_start_with_the_remedy(served: Path) -> None:
    with started(served, {}, conf={"device_type": 1, "engine": "onnxruntime"}, wait=False) as service:
        assert service.exit_code() != 0
        assert "needs CUDAExecutionProvider" in service.log
        assert "install onnxruntime-gpu" in service.log


def test_a_damaged_model_ends_the_start_in_one_sentence(served: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(served, broken)
    (broken / "serving_server" / "classifier.onnx").write_bytes(b"no model")
    with started(broken, {"is_thread_op": True}, concurrency=2, wait=False) as service:
        assert service.exit_code() != 0
        assert "classifier.onnx is not an ONNX model" in service.log
        assert "Traceback" not in service.log
