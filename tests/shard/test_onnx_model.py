"""An ONNX model in shards answers as it does behind the front, also by the protocols with tensors."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

from tests.support import onnx_models
from tests.support.service_process import APPS, ServiceProcess, key_value, read_answer, wait_until

ROW = {"input_ids": "[[1, 2, 3]]", "token_type_ids": "[[0, 0, 0]]", "attention_mask": "[[1, 1, 1]]"}


def ask(service: ServiceProcess, in_shards: int) -> list[object]:
    """Return the answers to one request by key/value and one by KServe v2, on one connection.

    in_shards: connections that a shard serves meanwhile.
    """
    tensors = [
        {"name": name, "shape": [1, 3], "datatype": "INT64", "data": json.loads(text)}
        for name, text in ROW.items()
    ]
    with contextlib.closing(service.connection()) as connection:
        answers = []
        for path, body in (
            ("/test/prediction", key_value(ROW)),
            ("/v2/models/model/infer", json.dumps({"inputs": tensors}).encode()),
        ):
            connection.request("POST", path, body)
            answer = read_answer(connection)
            assert answer.status == 200, answer.body
            answers.append(answer.json)
        assert service.metric("paddlewheel_shard_connections") == in_shards
    return answers


def test_shards_answer_as_the_front_with_its_workers(tmp_path: Path) -> None:
    section = {"local_service_conf": {"model_config": str(onnx_models.serving(tmp_path)), "thread_num": 1}}
    answers = []
    for shards in (1, 2):
        with ServiceProcess(
            APPS / "model.py", {"shards": shards, "op": {"model": section}}, wait=False
        ) as service:
            service.wait_until_ready(every_instance=True)
            answers.append(ask(service, in_shards=shards - 1))
            wait_until(lambda: service.answered().get("ok") == 2, "the requests are counted")
    assert answers[0] == answers[1]
