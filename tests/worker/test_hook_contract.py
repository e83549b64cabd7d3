"""The hooks' contract through a running service with a model: mini-batches, client batches, wrong results."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.support import models
from tests.support.service_process import APPS, ROOT, ServiceProcess

ENV = {"PYTHONPATH": f"{ROOT}:{ROOT / 'compat'}"}
WRONG = {
    "a list as feed": "[contract] preprocess returned list of 1 as feed 'image'; expected an ndarray",
    "a tensor": "preprocess returned Tensor as feed 'image'; expected an ndarray; call its .numpy()",
    "async": "(feed, is_skip_process, prod_errcode, prod_errinfo); write it without async and yield",
    "yield": "[contract] preprocess returned generator; expected a feed dict {name: ndarray} or a list",
    "no feed": "[contract] preprocess returned NoneType; expected a feed dict {name: ndarray} or a list",
    "a text": "[contract] preprocess returned str; expected a feed dict",
    "feeds that are none": "[contract] preprocess returned list of 2; expected a feed dict",
    "a number": "[contract] postprocess returned int; expected a dict, or (dict, prod_errcode, prod_errinfo)",
    "a list": "[contract] postprocess returned list of 1; expected a dict",
    "a jump": "[contract] check_jumping returned str; expected True or False",
}
WRONG_LENGTHS = {
    "five values": "[contract] preprocess returned tuple of 5; expected",
    "two values": "[contract] postprocess returned tuple of 2; expected",
}


def section(model: Path) -> dict[str, Any]:
    return {"model_config": str(model), "device_type": 0, "thread_num": 1}


@pytest.fixture(scope="module")
def contract(model_folder: Path) -> Iterator[ServiceProcess]:
    """Requests wait for each other: a batch of 8 is always full, or 200 ms old."""
    conf = section(models.images(model_folder))
    op = {"batch_size": 8, "auto_batching_timeout": 200, "local_service_conf": conf}
    config = {"op": {"contract": op}}
    with ServiceProcess(APPS / "contract.py", config, arguments=["section"], env=ENV) as service:
        yield service


def sums(value: float, pixels: int = 4) -> float:
    """Of the model's output for an image of this value: each pixel times two plus its channel's number."""
    return float(sum((value * 2 + channel) * pixels for channel in range(3)))


def together(service: ServiceProcess, requests: list[dict[str, str]]) -> list[dict[str, Any]]:
    with ThreadPoolExecutor(len(requests)) as pool:
        return list(pool.map(service.ask, requests))


def outputs(answer: dict[str, Any]) -> dict[str, str]:
    assert answer["err_no"] == 0, answer
    return dict(zip(answer["key"], answer["value"], strict=True))


def test_mini_batches_client_batches_and_skipped_models_share_a_batch(contract: ServiceProcess) -> None:
    requests = [
        {"value": "1"},
        {"value": "2", "how": "mini-batch"},
        {"value": "3", "how": "skip"},
        {"value": "4", "how": "rows", "rows": "3"},
        {"value": "5", "size": "1x3"},
        {"value": "6", "how": "mini-batch", "size": "1x5"},
        {"value": "7", "how": "rows", "rows": "1"},
        {"value": "8"},
    ]
    one, mini, skipped, rows, wide, other, row, last = (
        outputs(answer) for answer in together(contract, requests)
    )
    assert one == {"sums": str(sums(1)), "log_id": "0"}
    assert mini["sums"] == f"{sums(2)} {sums(3, 5)}"
    assert skipped == {"skipped": "3"}
    assert rows["sums"] == f"{sums(4)} {sums(5)} {sums(6)}"
    assert wide["sums"] == str(sums(5, 3))
    assert other["sums"] == f"{sums(6, 5)} {sums(7, 5)}"
    assert (row["sums"], last["sums"]) == (str(sums(7)), str(sums(8)))


@pytest.mark.parametrize("how", [*WRONG, *WRONG_LENGTHS])
def test_a_wrong_result_names_op_hook_type_and_expectation_and_fails_its_own_request_alone(
    contract: ServiceProcess, how: str
) -> None:
    workers = contract.worker_pids()
    requests = [{"value": str(n)} for n in range(7)]
    *answers, refused = together(contract, [*requests, {"value": "9", "how": how}])
    assert refused["err_no"] == (7000 if how in WRONG else 10000)
    assert (WRONG | WRONG_LENGTHS)[how] in refused["err_msg"]
    contract.wait_for_log(refused["err_msg"])
    assert [outputs(answer)["sums"] for answer in answers] == [str(sums(n)) for n in range(7)]
    assert contract.worker_pids() == workers


def test_a_model_may_be_given_in_the_script(model_folder: Path) -> None:
    env = ENV | {"MODEL": str(models.images(model_folder))}
    with ServiceProcess(APPS / "contract.py", arguments=["handler"], env=env) as service:
        assert service.predict({"value": "1"})["sums"] == str(sums(1))


def test_a_section_of_an_op_that_is_not_there_is_refused_where_it_may_be_misspelt(model_folder: Path) -> None:
    conf = section(models.images(model_folder))
    config = {"op": {"contrakt": {"local_service_conf": conf}}}
    with ServiceProcess(APPS / "contract.py", config, arguments=["section"], env=ENV, wait=False) as service:
        assert service.exit_code() == 2
        assert "op.contrakt: service test has no such Op, only start, contract" in service.log


def test_a_section_of_an_op_that_the_script_does_not_use_is_left_alone(model_folder: Path) -> None:
    conf = section(models.images(model_folder)) | {"client_type": "brpc", "precision": "FP32"}
    sections = {"start": {"concurrency": 1}, "contract": {"local_service_conf": conf}}
    config = {"op": {**sections, "former": {"concurrency": 3}}}
    with ServiceProcess(APPS / "contract.py", config, arguments=["section"], env=ENV) as service:
        assert service.predict({"value": "2"})["sums"] == str(sums(2))
        assert list(service.http("/health/ready").json["ops"]) == ["start", "contract"]
