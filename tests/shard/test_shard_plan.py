"""How many shards a service gets: as many as config.yml asks for, or fewer with a reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pipeline.api import shards
from pipeline.api.app import App, RepositoryPlace, ServedModel
from pipeline.api.dag import FEED, Dag, Edge, Node
from pipeline.api.examples import Examples
from pipeline.api.sequences import SequenceRules
from pipeline.config.config_file import ServiceConfig
from pipeline.front.pool import shard_plan
from pipeline.front.pool.plan import placement, shares_process
from pipeline.front.pool.shard_plan import divide_limits, plan_shards
from tests.support import onnx_models

NODES = {"agents": ["10.0.0.2:7071"], "token_file": "token"}


def app_with(config: dict[str, Any], *ops: str, shards: int | None = 2, **app: Any) -> App:
    models = tuple(
        ServedModel(name, Dag((Node(name, name, (Edge(FEED),)),), name, source=FEED))
        for name in ops or ("a",)
    )
    sections = {op: {} for op in ops or ("a",)}
    settings = {"http_port": 9292, "shards": shards, "op": sections, **config}
    return App("app", models, ServiceConfig.model_validate(settings), "/app.py", (), "/", Examples(), **app)


@pytest.fixture(autouse=True)
def _machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_plan, "usable_cores", lambda: 4)
    monkeypatch.setattr(shard_plan, "available_memory", lambda: 8 << 30)


@pytest.mark.parametrize("concurrency", [1, 2, 5])
def test_each_shard_has_an_equal_part_of_the_instances_as_threads(concurrency: int) -> None:
    app, note = plan_shards(app_with({"op": {"a": {"concurrency": concurrency}}}))
    assert note == ""
    assert app.config.shards == 2
    assert shares_process(app, "a")
    assert [len(numbers) for numbers in placement(app, "a")] == [max(1, concurrency // 2)] * 2


def test_an_onnx_model_may_have_shards(tmp_path: Path) -> None:
    model = onnx_models.serving(tmp_path)
    section = {"local_service_conf": {"model_dir": str(model), "fetch_list": []}}
    app, note = plan_shards(app_with({"op": {"a": section}}))
    assert (app.config.shards, note) == (2, "")


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"dag": {"is_thread_op": False}}, "dag.is_thread_op is false"),
        ({"op": {"a": {"placement": "process"}}}, "op.a.placement is process"),
        ({"op": {"a": {"timeout": 500}}}, "op.a.timeout is set"),
        ({"op": {"a": {"crash_retry": False}}}, "op.a.crash_retry is false"),
        ({"op": {"a": {"max_concurrency": 2}}}, "op.a.max_concurrency is set"),
        ({"security": {"api_keys": "keys"}}, "security.api_keys"),
        ({"tls": {"cert": "cert.pem", "key": "key.pem"}}, "tls is set"),
    ],
    ids=lambda value: "" if isinstance(value, dict) else value.partition(" ")[0],
)
def test_one_process_serves_requests_that_share_state(config: dict[str, Any], reason: str) -> None:
    app, note = plan_shards(app_with(config))
    assert app.config.shards == 1
    assert note.startswith("shards: 2 has no effect, one process serves: ")
    assert reason in note


def test_one_process_serves_several_ops_repositories_and_sequences() -> None:
    assert "several Ops" in plan_shards(app_with({}, "a", "b"))[1]
    place = RepositoryPlace(("/models",))
    assert "repository" in plan_shards(app_with({}, repository=place))[1]
    assert "sequences" in plan_shards(app_with({}, sequences={"a": SequenceRules()}))[1]


def test_cores_and_memory_limit_the_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    app, note = plan_shards(app_with({"shards": 9}))
    assert app.config.shards == 4
    assert note == "shards: 9 is more than the 4 cores that this service may use: 4 shards"
    monkeypatch.setattr(shard_plan, "available_memory", lambda: 800 << 20)
    app, note = plan_shards(app_with({"shards": 4}))
    assert app.config.shards == 3
    assert "memory" in note
    app, note = plan_shards(app_with({"shards": 4, "limits": {"max_memory": 600}}))
    assert (app.config.shards, note) == (2, "shards: 4 need more memory than limits.max_memory (600 MB): 2")
    monkeypatch.setattr(shard_plan, "available_memory", lambda: 0)
    assert plan_shards(app_with({"shards": 4}))[0].config.shards == 1


@pytest.mark.parametrize(("limit", "part"), [(1000, 500), (5, 2), (1, 1)])
def test_a_shard_admits_an_equal_part(limit: int, part: int) -> None:
    app = divide_limits(app_with({"dag": {"channel_size": limit}}))
    assert app.config.dag.max_pending_requests == part


def test_without_shards_nothing_is_said() -> None:
    assert plan_shards(app_with({"shards": 1, "tls": {"cert": "c", "key": "k"}}))[1] == ""


@pytest.mark.parametrize(
    ("config", "count"),
    [
        ({"op": {"a": {"concurrency": 2}}}, 2),
        ({"op": {"a": {"concurrency": 9}}}, 4),
        ({"op": {"a": {"concurrency": 1}}}, 1),
        ({"op": {"a": {"concurrency": 2}}, "tls": {"cert": "cert.pem", "key": "key.pem"}}, 1),
        ({"op": {"a": {"concurrency": 2}}, "nodes": NODES}, 1),
        ({"op": {"a": {"concurrency": 2}}, "shards": 2}, 1),
    ],
    ids=["an instance each", "a core each", "one instance", "an obstacle", "other machines", "a number"],
)
def test_auto_compares_a_shard_for_each_core(
    config: dict[str, Any], count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards, "usable_cores", lambda: 4)
    assert shards.count_measured_shards(app_with({"shards": "auto", **config})) == count


AUTO_OP = {"concurrency": 2, "batch_size": "auto"}


@pytest.mark.parametrize(
    ("config", "count"),
    [
        ({}, 2),
        ({"dag": {"max_pending_requests": 1000}}, 2),
        ({"dag": {"max_pending_requests": 999}}, 1),
        ({"dag": {"channel_size": 10}}, 1),
        ({"dag": {"max_pending_rows": 10}}, 1),
        ({"limits": {"bodies_bytes": 1 << 20}}, 1),
        ({"op": {"a": {"concurrency": 2, "batch_size": 8}}}, 1),
        ({"op": {"a": AUTO_OP | {"timeout": 500}}}, 1),
        ({"dag": {"is_thread_op": False}}, 1),
        ({"nodes": {"agents": ["10.0.0.2:7071"], "token_file": "token"}}, 1),
        ({"shards": 1}, 1),
        ({"shards": "auto", "dag": {"channel_size": 10}}, 2),
    ],
    ids=lambda value: str(value) if isinstance(value, int) else ",".join(value),
)
def test_without_the_key_auto_compares_shards_unless_the_service_relies_on_one_front(
    config: dict[str, Any], count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards, "usable_cores", lambda: 4)
    app = app_with({"op": {"a": AUTO_OP}, **config}, shards=None)
    assert shards.count_measured_shards(app) == count


def test_without_the_key_auto_compares_no_shards_for_several_ops_repositories_and_sequences() -> None:
    config = {"op": {"a": AUTO_OP, "b": AUTO_OP}}
    assert shards.count_measured_shards(app_with(config, "a", "b", shards=None)) == 1
    place = RepositoryPlace(("/models",))
    assert shards.count_measured_shards(app_with({"op": {"a": AUTO_OP}}, shards=None, repository=place)) == 1
    rules = {"a": SequenceRules()}
    assert shards.count_measured_shards(app_with({"op": {"a": AUTO_OP}}, shards=None, sequences=rules)) == 1


def test_auto_without_a_measurement_is_one_process() -> None:
    assert plan_shards(app_with({"shards": "auto"}))[0].config.shards == 1
