"""The service that `paddlewheel new` wrote, started as it stands."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as v2_grpc
import tritonclient.http as v2_http

from client.pipeline_client import PipelineClient
from client.protos.pipeline_service_pb2 import Request, Tensor
from client.values import parse_value
from pipeline.api.examples import example_body
from pipeline.models.serving_model import ServingModel
from tests.support import models, onnx_models
from tests.support.command_line import paddlewheel
from tests.support.free_ports import free_port
from tests.support.service_process import ServiceProcess, key_value


@contextlib.contextmanager
def started(folder: Path, model: Path, name: str) -> Iterator[ServiceProcess]:
    """What `new` wrote, started as it stands."""
    ports = {"http_port": free_port(), "rpc_port": free_port()}
    done = paddlewheel(
        "new", folder, "--model", model, "--name", name,
        "--http-port", str(ports["http_port"]), "--rpc-port", str(ports["rpc_port"]),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    with ServiceProcess(folder, ports, name=name) as running:
        yield running


@pytest.fixture(scope="module")
def service(classifier: ServingModel, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    folder = tmp_path_factory.mktemp("apps") / "news"
    with started(folder, classifier.directory, "news") as running:
        yield running


@pytest.fixture(scope="module")
def stateful(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    """The same for a recurrent model, whose feeds have no batch axis in common."""
    folder = tmp_path_factory.mktemp("stateful")
    with started(folder / "app", onnx_models.bare(folder, "stateful"), "counter") as running:
        yield running


def feeds_of(*rows: list[int]) -> dict[str, str]:
    """A request to the classifier with these ids, none of them padding."""
    ones = [[1] * len(row) for row in rows]
    zeros = [[0] * len(row) for row in rows]
    arrays = {"input_ids": rows, "token_type_ids": zeros, "attention_mask": ones}
    return {name: json.dumps(array) for name, array in arrays.items()}


class TestNewService:
    def test_it_answers_texts_of_numbers_with_the_model_s_output_and_its_label(
        self, service: ServiceProcess, classifier: ServingModel
    ) -> None:
        answer = service.predict(feeds_of([5, 9, 2], [7, 1, 3]))
        logits = np.array(parse_value(answer["logits"]))
        assert logits.shape == (2, 3)
        labels = classifier.labels
        assert parse_value(answer["label"]) == [labels[i] for i in logits.argmax(-1)]

    def test_a_row_has_the_same_answer_alone_and_beside_another(self, service: ServiceProcess) -> None:
        both = np.array(parse_value(service.predict(feeds_of([5, 9, 2], [7, 1, 3]))["logits"]))
        alone = [parse_value(service.predict(feeds_of(row))["logits"]) for row in ([5, 9, 2], [7, 1, 3])]
        np.testing.assert_allclose(np.concatenate(alone), both, atol=1e-5)

    def test_it_takes_tensors_over_grpc(self, service: ServiceProcess) -> None:
        tensors = [
            Tensor(name=name, elem_type=0, shape=[1, 3], int64_data=json.loads(text)[0])
            for name, text in feeds_of([5, 9, 2]).items()
        ]
        response = service.rpc(Request(name="news", method="prediction", tensors=tensors))
        assert response.err_no == 0, response.err_msg
        from_texts = service.predict(feeds_of([5, 9, 2]))
        assert dict(zip(response.key, response.value, strict=True)) == from_texts

    def test_it_takes_the_arrays_of_pipeline_client(self, service: ServiceProcess) -> None:
        texts = feeds_of([5, 9, 2])
        arrays = {name: np.array(json.loads(text)) for name, text in texts.items()}
        with PipelineClient() as client:
            client.connect([f"127.0.0.1:{service.rpc_port}"])
            for tensors in (False, True):
                response = client.predict(arrays, pack_tensor_format=tensors)
                assert response.err_no == 0, response.err_msg
                assert dict(zip(response.key, response.value, strict=True)) == service.predict(texts)

    def test_what_the_model_refuses_is_told_in_the_log_as_well(self, service: ServiceProcess) -> None:
        answer = service.http("/news/prediction", key_value(feeds_of([5, 10**9, 2])))
        assert (answer.status, answer.json["err_no"]) == (500, 9000)
        service.wait_for_log("WARNING [front] ModelFailed over http: [news] failed to predict. ")

    def test_a_list_that_is_no_text_is_refused_with_the_service_s_own_example(
        self, service: ServiceProcess
    ) -> None:
        answer = service.http("/news/prediction", '{"key": ["input_ids"], "value": [[[1, 2]]]}')
        told, _, valid = answer.json["err_msg"].partition(". A valid message: ")
        assert "'value[0]'" in told and "in quotes" in told
        assert service.http("/news/prediction", valid).json["err_no"] == 0

    def test_kserve_v1_and_v2_know_its_tensors(
        self, service: ServiceProcess, classifier: ServingModel
    ) -> None:
        metadata = service.http("/v2/models/news").json
        assert metadata["inputs"][0] == {"name": "input_ids", "datatype": "INT64", "shape": [-1, -1]}
        assert [output["name"] for output in metadata["outputs"]] == ["label", "score", "logits"]
        ids = [[5, 9, 2], [7, 1, 3]]
        rows = [{"input_ids": row, "token_type_ids": [0] * 3, "attention_mask": [1] * 3} for row in ids]
        answer = service.http("/v1/models/news:predict", json.dumps({"instances": rows}))
        by_key_value = service.predict(feeds_of(*ids))
        logits = np.array(parse_value(by_key_value["logits"]))
        np.testing.assert_allclose([one["logits"] for one in answer.json["predictions"]], logits, atol=1e-5)
        for name in ("label", "score"):
            assert [one[name] for one in answer.json["predictions"]] == pytest.approx(
                parse_value(by_key_value[name])
            )

    def test_every_example_of_its_description_is_answered(self, service: ServiceProcess) -> None:
        paths = service.http("/openapi.json").json["paths"]
        for path in ("/news/prediction", "/v1/models/news:predict", "/v2/models/news/infer"):
            body = paths[path]["post"]["requestBody"]["content"]["application/json"]["example"]
            answer = service.http(path, json.dumps(body))
            assert (answer.status, answer.json.get("err_no", 0)) == (200, 0), answer

    def test_its_script_shows_a_body_that_it_answers(
        self, service: ServiceProcess, classifier: ServingModel
    ) -> None:
        body = example_body(classifier.feeds)
        assert service.http("/news/prediction", body).json["err_no"] == 0

    @pytest.mark.parametrize(
        ("given", "told"),
        [
            ("[[1, 2", "not a list of numbers"),
            ("hello", "not a list of numbers"),
            ("[[1, 2], [3]]", "rows of equal length"),
            ("[" * 50_000, "not a list of numbers"),
            ("[]", "empty list"),
            ('[["1"]]', "no number int64 can hold"),
            ("[[1, null, 3]]", "no number int64 can hold"),
            ('{"ids": [1]}', "no number int64 can hold"),
            ("[[1, 2.5, 3]]", "2.5, which is no int64"),
            ("[[1, NaN, 3]]", "nan, which is no int64"),
            ("[1, 2, 3]", "has shape (3,), expected int64 [-1, -1]"),
        ],
        ids=lambda text: text[:20],
    )
    def test_what_is_no_feed_is_refused_by_name(self, service: ServiceProcess, given: str, told: str) -> None:
        answer = service.http("/news/prediction", key_value({**feeds_of([1, 2, 3]), "input_ids": given}))
        assert (answer.status, answer.json["err_no"]) == (400, 5000)
        assert "feed 'input_ids'" in answer.json["err_msg"] and told in answer.json["err_msg"]

    def test_a_mask_of_another_length_is_refused_and_not_padded(self, service: ServiceProcess) -> None:
        answer = service.http(
            "/news/prediction", key_value({**feeds_of([1, 2, 3]), "attention_mask": "[[1, 1]]"})
        )
        assert answer.status == 400
        assert "attention_mask [1, 2]" in answer.json["err_msg"]

    def test_a_missing_feed_is_refused_with_a_body_to_send(self, service: ServiceProcess) -> None:
        answer = service.http("/news/prediction", key_value({"text": "hello"}))
        assert answer.status == 400
        assert "feed 'input_ids' is missing" in answer.json["err_msg"]
        body = answer.json["err_msg"].partition("under its name: ")[2]
        assert service.http("/news/prediction", body).json["err_no"] == 0


class TestStatefulModel:
    @pytest.mark.parametrize(("module", "port"), [(v2_http, "http_port"), (v2_grpc, "rpc_port")])
    def test_a_client_that_sends_the_last_answer_s_state_is_answered_from_it(
        self, stateful: ServiceProcess, module: Any, port: str
    ) -> None:
        state, sums = np.zeros((2, 1, 4), np.float32), []
        url = f"127.0.0.1:{getattr(stateful, port)}"
        with contextlib.closing(module.InferenceServerClient(url)) as client:
            for number in (1, 2, 3):
                x, rate = np.full((1, 4), number, np.float32), np.array(10, np.float32)
                arrays = {"x": x, "state": state, "rate": rate}
                inputs = [module.InferInput(name, array.shape, "FP32") for name, array in arrays.items()]
                for given, array in zip(inputs, arrays.values(), strict=True):
                    given.set_data_from_numpy(array)
                answer = client.infer("counter", inputs)
                state = answer.as_numpy("next")
                sums.append(answer.as_numpy("y").tolist())
        assert sums == [[[20.0] * 4], [[60.0] * 4], [[120.0] * 4]]

    def test_every_example_of_its_description_is_answered(self, stateful: ServiceProcess) -> None:
        paths = stateful.http("/openapi.json").json["paths"]
        for path in ("/counter/prediction", "/v2/models/counter/infer"):
            body = paths[path]["post"]["requestBody"]["content"]["application/json"]["example"]
            answer = stateful.http(path, json.dumps(body))
            assert (answer.status, answer.json.get("err_no", 0)) == (200, 0), answer


def test_requests_to_a_model_for_batches_of_one_do_not_share_a_run(
    model_folder: Path, tmp_path: Path
) -> None:
    """Run together, as its config.yml allows, each would have the mean of all."""
    model = models.centred(model_folder)
    with started(tmp_path / "app", model, "centred") as service, ThreadPoolExecutor(16) as pool:
        asked = [{"x": f"[[{number}, 0, 0, 0]]"} for number in range(256)]
        answers = list(pool.map(service.predict, asked))
    means = [parse_value(answer["y"])[0][1] for answer in answers]
    assert means == [-number / 4 for number in range(256)]
