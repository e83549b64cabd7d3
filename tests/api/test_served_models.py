"""The models of a server: what every source of them promises, and what is served of them."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest
import tritonclient.http as v2
from tritonclient.utils import InferenceServerException

from pipeline import Op, RequestOp
from pipeline.api.app import (
    App,
    ModelSource,
    RepositoryPlace,
    ScriptModels,
    ServedModel,
    collect_models,
    read_models,
    write_models,
)
from pipeline.api.dag import Dag, Edge, Node, build_dag, collect_ops
from pipeline.api.examples import Examples
from pipeline.api.restrictions import Restriction, Restrictions
from pipeline.config.config_file import ServiceConfig
from pipeline.errors import ConfigError
from pipeline.models.tensor_spec import Signature
from pipeline.plugins import Plugin
from pipeline.tuning.choice import Choice, Timed
from tests.apps.ensembles import TWICE, Beside
from tests.support import onnx_models
from tests.support.service_process import APPS, ServiceProcess, wait_until

RAW = np.arange(8, dtype=np.float32).reshape(2, 4)
FACTOR = np.float32(4500)


def script_models() -> ScriptModels:
    """Of a script whose last Op is named as its service."""
    last = Op("test", [Op("first", [RequestOp()])])
    return ScriptModels("test", build_dag(collect_ops(last), last), Signature())


@pytest.fixture(params=["a script", "ensembles beside it"])
def source(request: pytest.FixtureRequest) -> ModelSource:
    return script_models() if request.param == "a script" else Beside(script_models().models())


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    folder = tmp_path_factory.mktemp("ensembles")
    files = {"scale": onnx_models.versions(folder), "remember": onnx_models.bare(folder, "stateful")}
    for number in ("1", "2", "3"):
        source = onnx_models.onnx_file("scaled")
        (files["scale"] / number / "model.onnx").write_bytes(source.read_bytes())
    config = {
        "dag": {"http_errors": "status"},
        "op": {name: {"local_service_conf": {"model_config": str(path)}} for name, path in files.items()},
    }
    with ServiceProcess(APPS / "ensembles.py", config) as process:
        yield process


@pytest.fixture
def client(service: ServiceProcess) -> Iterator[v2.InferenceServerClient]:
    with v2.InferenceServerClient(f"127.0.0.1:{service.http_port}", concurrency=8) as made:
        yield made


def tensors(**given: np.ndarray) -> list[v2.InferInput]:
    made = []
    for name, array in given.items():
        made.append(v2.InferInput(name, list(array.shape), "FP32"))
        made[-1].set_data_from_numpy(array)
    return made


# What every source promises:


def test_the_names_of_models_are_their_own(source: ModelSource) -> None:
    names = [model.name for model in collect_models(source)]
    assert len(names) == len(set(names)) > 0


def test_each_step_comes_after_those_whose_output_it_is_given(source: ModelSource) -> None:
    for model in collect_models(source):
        order = model.graph.order
        assert sorted(order) == sorted(model.graph.nodes)
        assert model.graph.response in order
        for name, inputs in model.graph.inputs.items():
            assert set(inputs) <= {model.graph.source, *order[: order.index(name)]}


def test_models_are_the_same_after_their_way_to_another_process(source: ModelSource) -> None:
    for model in collect_models(source):
        (again,) = read_models(write_models([model]))
        assert write_models([again]) == write_models([model])
        assert again._replace(graph=model.graph) == model
        assert (again.graph.steps, again.graph.answer_axes) == (model.graph.steps, model.graph.answer_axes)
        assert (again.op, again.answering_op) == (model.op, model.answering_op)
        assert again.graph.tensors == model.graph.tensors


def test_an_app_is_the_same_in_another_process() -> None:
    models = tuple(script_models().models())
    config = ServiceConfig.model_validate({"http_port": 8080, "op": {"test": {"concurrency": 2}}})
    described = {"test": {"scale": [math.inf, 2**70]}}
    timed = Timed("openvino", "bf16", points=((1, 16, 0.5),))
    app = App(
        "test",
        models,
        config,
        script="/a/\udcff.py",  # a file name that is no UTF-8
        arguments=("\udcfe",),
        folder="/a",
        examples=Examples(row={"x": [1.5]}, bodies={"image/png": "aGk="}),
        described=described,
        repository=RepositoryPlace(("models",), defaults=(("", "threads", 4),), grpc_arguments=(("a", 1),)),
        unavailable={"bad": ("1", "no file")},
        dialects=(Plugin("paddlewheel.dialects", "tei", "a:B", "paddlewheel"),),
        choices={"test": Choice((timed,), left_open=("engine",))},
        restrictions=Restrictions(http=(Restriction("health", "key", "secret"),)),
    )
    again = App.from_json(app.to_json())
    assert again.to_json() == app.to_json()
    assert again.config.model_dump(exclude_unset=True) == config.model_dump(exclude_unset=True)
    assert (again.arguments, again.examples, again.described) == (app.arguments, app.examples, described)
    assert (again.choices, again.unavailable) == (app.choices, app.unavailable)
    assert (again.dialects, again.restrictions) == (app.dialects, app.restrictions)
    assert app.repository is not None and again.repository is not None
    assert again.repository.grpc_arguments == app.repository.grpc_arguments


# A script, and mistakes:


def test_a_script_serves_its_dag_first_and_each_op_by_itself() -> None:
    models = collect_models(script_models())
    assert [(model.name, model.op) for model in models] == [
        ("test", ""),
        ("first", "first"),
        ("test_model", "test"),
    ]
    assert [model.answering_op for model in models] == ["test", "first", "test"]


@pytest.mark.parametrize(
    ("models", "told"),
    [
        ([], "there is no model"),
        ([TWICE, TWICE], "two models are named twice"),
        ([ServedModel("m", Dag((Node("a", "a", (Edge("b"),)),), "a"))], "m: a is given the output of b"),
        ([ServedModel("m", Dag((Node("a", "a", ()),), "a"))], "m: a is given nothing"),
        ([ServedModel("m", Dag((Node("a", "a", (Edge("@DAGExecutor"),), ("b",)),), "a"))], "m: a jumps to b"),
        ([ServedModel("m", Dag((Node("a", "a", (Edge("@DAGExecutor"),)),), "b"))], "m: b shall answer"),
        (
            [ServedModel("m", Dag((Node("a", "a", (Edge("b"),)), Node("b", "b", (Edge("a"),))), "b"))],
            "m: its steps form a cycle: a -> b -> a|m: its steps form a cycle: b -> a -> b",
        ),
        (
            [ServedModel("m", Dag((Node("a", "a", (Edge("s", {"x": "y"}), Edge("s"))),), "a", source="s"))],
            "m: a is given s by two edges",
        ),
    ],
    ids=[
        "none", "two of a name", "a stranger", "no input", "a jump outside", "no answer", "a cycle",
        "two edges of one",
    ],
)  # fmt: skip
def test_what_can_not_be_served_is_told(models: list[ServedModel], told: str) -> None:
    class Source:
        def models(self) -> list[ServedModel]:
            return models

    with pytest.raises(ConfigError, match=told):
        collect_models(Source())


# What is served of it:


def test_a_step_is_given_single_tensors_under_the_names_of_its_feeds(
    client: v2.InferenceServerClient,
) -> None:
    answer = client.infer("twice", tensors(raw=RAW))
    np.testing.assert_allclose(answer.as_numpy("huge"), RAW * FACTOR * FACTOR, rtol=1e-6)
    assert [output["name"] for output in answer.get_response()["outputs"]] == ["huge"]


def test_a_step_joins_tensors_of_several(client: v2.InferenceServerClient) -> None:
    memory, part = np.full((2, 2, 4), 2, np.float32), np.array(0.5, np.float32)
    answer = client.infer("remembered", tensors(raw=RAW, memory=memory, part=part))
    remembered = memory + RAW * FACTOR * FACTOR * part
    np.testing.assert_allclose(answer.as_numpy("memory"), remembered, rtol=1e-6)
    np.testing.assert_allclose(answer.as_numpy("sum"), remembered.sum(axis=0), rtol=1e-6)


def test_an_op_is_asked_by_itself_beside_the_ensembles(client: v2.InferenceServerClient) -> None:
    np.testing.assert_allclose(client.infer("scale", tensors(x=RAW)).as_numpy("y"), RAW * FACTOR, rtol=1e-6)


def test_each_model_tells_its_own_tensors_and_version(client: v2.InferenceServerClient) -> None:
    told = {name: client.get_model_metadata(name) for name in ("twice", "remembered", "scale", "remember")}
    assert [spec["name"] for spec in told["twice"]["inputs"]] == ["raw"]
    assert [spec["name"] for spec in told["remembered"]["outputs"]] == ["memory", "sum"]
    assert {name: one["versions"] for name, one in told.items()} == {
        "twice": ["3"], "remembered": ["1"], "scale": ["3"], "remember": ["1"],
    }  # fmt: skip
    assert client.infer("twice", tensors(raw=RAW), model_version="3").get_response()["model_version"] == "3"
    with pytest.raises(InferenceServerException, match="version"):
        client.infer("twice", tensors(raw=RAW), model_version="2")


def test_requests_are_counted_by_model(client: v2.InferenceServerClient) -> None:
    def count(name: str) -> int:
        (told,) = client.get_inference_statistics(name)["model_stats"]
        return int(told["inference_stats"]["success"]["count"])

    before = {name: count(name) for name in ("twice", "remembered", "scale")}
    client.infer("twice", tensors(raw=RAW))
    grown = {name: count(name) - before[name] for name in before}
    assert grown == {"twice": 1, "remembered": 0, "scale": 2}


def test_a_model_is_ready_while_its_own_ops_are(
    service: ServiceProcess, client: v2.InferenceServerClient
) -> None:
    client.unload_model("remember")
    try:
        ready = {name: client.is_model_ready(name) for name in ("twice", "scale", "remembered", "test")}
        assert ready == {"twice": True, "scale": True, "remembered": False, "test": False}
        with pytest.raises(InferenceServerException, match="no available versions"):
            client.infer("remembered", tensors(raw=RAW))
        assert client.infer("twice", tensors(raw=RAW)).as_numpy("huge").shape == (2, 4)
    finally:
        client.load_model("remember")
    wait_until(lambda: client.is_model_ready("remembered"), "it is loaded", on_timeout=lambda: service.log)


def test_an_input_that_does_not_fit_is_refused_and_names_the_ensemble(
    client: v2.InferenceServerClient,
) -> None:
    with pytest.raises(InferenceServerException, match="twice"):
        client.infer("twice", tensors(x=RAW))
    with pytest.raises(InferenceServerException, match="shape"):
        client.infer("twice", tensors(raw=RAW[:, :3].copy()))
