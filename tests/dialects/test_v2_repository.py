"""Versions of a model, and loading and unloading it over KServe v2, asked with Triton's own clients."""

from __future__ import annotations

import shutil
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import tritonclient.grpc as v2_grpc
import tritonclient.http as v2_http
from tritonclient.utils import InferenceServerException

from pipeline.errors import ConfigError
from pipeline.models.serving_model import choose_version
from tests.support import onnx_models
from tests.support.service_process import APPS, ServiceProcess, key_value, wait_until

FEEDS = {
    "input_ids": np.array([[3, 1, 4, 1, 5]], np.int64),
    "token_type_ids": np.zeros((1, 5), np.int64),
    "attention_mask": np.ones((1, 5), np.int64),
}
KINDS = {1: "classifier", 2: "perturbed"}  # of an odd version, and of an even one
GONE = "has no available versions"


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model directory of the service, with the versions 1 and 2."""
    folder = tmp_path_factory.mktemp("repository") / "model"
    folder.mkdir()
    for number in (1, 2):
        add(folder, number)
    return folder


@pytest.fixture(scope="module")
def service(repository: Path) -> Iterator[ServiceProcess]:
    conf = {"model_config": str(repository), "device_type": 0}
    config = {
        "dag": {"http_errors": "status"},
        "op": {"model": {"batch_size": 8, "local_service_conf": conf}},
    }
    with ServiceProcess(APPS / "model.py", config) as running:
        yield running


@pytest.fixture(params=["http", "grpc"])
def protocol(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def client(protocol: str, service: ServiceProcess) -> Iterator[Any]:
    with client_of(service, protocol) as made:
        yield made


def client_of(service: ServiceProcess, protocol: str = "http") -> Any:
    """One over HTTP is its thread's, which must close it too: what it leaves open may end in any other."""
    if protocol == "grpc":
        return v2_grpc.InferenceServerClient(f"127.0.0.1:{service.rpc_port}")
    return v2_http.InferenceServerClient(f"127.0.0.1:{service.http_port}", concurrency=4)


def order(service: ServiceProcess, protocol: str, what: str) -> None:
    """Load or unload the model with a client of its own."""
    with client_of(service, protocol) as ordering:
        getattr(ordering, what)("model")


def ask_once(service: ServiceProcess, protocol: str, version: str = "") -> tuple[str, np.ndarray]:
    """`ask` with a client of its own, from any thread."""
    with client_of(service, protocol) as asking:
        return ask(asking, version=version)


def add(folder: Path, number: int) -> int:
    """A new version, put into place when it is complete."""
    staging = folder / f"new-{number}"
    staging.mkdir()
    shutil.copy(onnx_models.onnx_file(KINDS[2 - number % 2]), staging / "model.onnx")
    staging.rename(folder / str(number))
    return number


def add_next(folder: Path) -> int:
    return add(folder, 1 + int(choose_version(folder).version))


def expected(version: str) -> np.ndarray:
    session = onnxruntime.InferenceSession(onnx_models.onnx_file(KINDS[2 - int(version) % 2]))
    return session.run(None, FEEDS)[0]


EXPECTED = {even: expected(even) for even in ("1", "2")}


def ask(client: Any, model: str = "model", version: str = "") -> tuple[str, np.ndarray]:
    """The version that the answer names, and the logits in it."""
    module = v2_grpc if isinstance(client, v2_grpc.InferenceServerClient) else v2_http
    inputs = []
    for name, array in FEEDS.items():
        inputs.append(module.InferInput(name, list(array.shape), "INT64"))
        inputs[-1].set_data_from_numpy(array)
    result = client.infer(model, inputs, model_version=version)
    response = result.get_response()
    named = response.model_version if module is v2_grpc else response["model_version"]
    return named, result.as_numpy("logits")


def check(answer: tuple[str, np.ndarray]) -> str:
    """The version, once the logits are seen to be its own."""
    version, logits = answer
    np.testing.assert_allclose(logits, EXPECTED[str(2 - int(version) % 2)], atol=1e-6)
    return version


def states(client: Any) -> list[tuple[str, str, str, str]]:
    index = client.get_model_repository_index()
    if not isinstance(index, list):
        return [(row.name, row.version, row.state, row.reason) for row in index.models]
    return [(row["name"], row["version"], row["state"], row.get("reason", "")) for row in index]


def versions_told(client: Any, model: str = "model") -> list[str]:
    told = client.get_model_metadata(model)
    return list(told["versions"] if isinstance(told, dict) else told.versions)


def test_the_latest_version_answers_and_is_named(client: Any, repository: Path) -> None:
    latest = choose_version(repository).version
    assert check(ask(client)) == check(ask(client, version=latest)) == latest
    assert versions_told(client) == versions_told(client, "test") == [latest]
    assert client.is_model_ready("model", latest) and not client.is_model_ready("model", "1")
    with pytest.raises(InferenceServerException, match="'model' version 1 is not found"):
        ask(client, version="1")
    with pytest.raises(InferenceServerException, match="'model' version 1 is not found"):
        client.get_model_metadata("model", "1")


def test_a_load_under_load_loses_no_request_and_each_answer_names_its_version(
    client: Any, service: ServiceProcess, repository: Path
) -> None:
    old, stop = choose_version(repository).version, threading.Event()
    seen: list[list[str]] = [[] for _ in range(4)]

    def go_on_asking(protocol: str, versions: list[str]) -> None:
        with client_of(service, protocol) as asking:
            while not stop.is_set():
                versions.append(check(ask(asking)))

    with ThreadPoolExecutor(4) as pool:
        callers = [
            pool.submit(go_on_asking, protocol, versions)
            for protocol, versions in zip(("http", "grpc") * 2, seen, strict=True)
        ]
        wait_until(lambda: all(seen) or any(caller.done() for caller in callers), "each has an answer")
        new = str(add_next(repository))
        client.load_model("model")
        assert versions_told(client) == [new]
        assert check(ask(client)) == new
        stop.set()
        for caller in callers:
            caller.result()
    for versions in seen:
        assert versions == sorted(versions, key=int)  # none of the old after the new
    assert {version for versions in seen for version in versions} >= {old}
    assert len(service.worker_pids()) == 1


def test_a_version_that_does_not_load_leaves_the_old_one_serving(
    client: Any, service: ServiceProcess, repository: Path
) -> None:
    served = choose_version(repository).version
    broken = repository / str(int(served) + 1)
    broken.mkdir()
    (broken / "model.onnx").write_bytes(onnx_models.onnx_file("classifier").read_bytes()[:-300])
    pids = service.worker_pids()
    with pytest.raises(InferenceServerException) as refusal:
        client.load_model("model")
    rows = states(client)
    shutil.rmtree(broken)
    assert (
        f"load failed for model 'model': version {broken.name} is at UNAVAILABLE" in refusal.value.message()
    )
    assert "model.onnx" in refusal.value.message()
    assert ("model", served, "READY", "") in rows
    assert [row[1:3] for row in rows if "model.onnx" in row[3]] == [(broken.name, "UNAVAILABLE")]
    assert check(ask(client)) == served
    assert service.worker_pids() == pids


def test_what_is_unloaded_is_refused_until_it_is_loaded(
    client: Any, service: ServiceProcess, repository: Path
) -> None:
    served = choose_version(repository).version
    client.unload_model("model")
    assert service.worker_pids() == []
    assert client.is_server_ready() and not client.is_model_ready("model")
    for model in ("model", "test"):
        with pytest.raises(InferenceServerException, match=GONE):
            ask(client, model)
        with pytest.raises(InferenceServerException, match=GONE):
            client.get_model_metadata(model)
        with pytest.raises(InferenceServerException, match=f"requested model '{model}' is not available"):
            client.get_inference_statistics(model)
    every = {"as_json": True} if isinstance(client, v2_grpc.InferenceServerClient) else {}
    assert not client.get_inference_statistics(**every).get("model_stats")
    assert states(client) == [
        ("model", served, "UNAVAILABLE", "unloaded"),
        ("test", served, "UNAVAILABLE", "unloaded"),
    ]
    told = service.http("/test/prediction", key_value({"input_ids": "[[1]]"}))
    assert (told.status, "Op model is unloaded" in told.json["err_msg"]) == (503, True)
    assert service.http("/health/ready").status == 503
    client.load_model("model")
    assert check(ask(client)) == served
    assert [row[2] for row in states(client)] == ["READY", "READY"]
    assert service.http("/health/ready").status == 200


def test_unloading_the_service_unloads_its_ops(client: Any, service: ServiceProcess) -> None:
    client.unload_model("test")
    assert not client.is_model_ready("test") and not client.is_model_ready("model")
    client.load_model("test")
    assert client.is_model_ready("test") and client.is_model_ready("model")


def test_what_was_admitted_is_answered_before_the_worker_leaves(
    client: Any, protocol: str, service: ServiceProcess, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    feeds = {name: str(array.tolist()) for name, array in FEEDS.items()}
    with ThreadPoolExecutor(2) as pool:
        held = pool.submit(service.predict, {**feeds, "gate": str(gate)})
        wait_until(Path(f"{gate}.waiting").exists, "the worker has the request")
        unloading = pool.submit(order, service, protocol, "unload_model")
        wait_until(lambda: states(client)[0][2] == "UNLOADING", "the model is being unloaded")
        assert not unloading.done()
        gate.touch()
        assert "logits" in held.result()
        unloading.result()
    client.load_model("model")


def test_a_request_of_a_version_that_goes_meanwhile_is_not_answered_by_another(
    protocol: str, service: ServiceProcess, repository: Path, tmp_path: Path
) -> None:
    gate, old = tmp_path / "gate", choose_version(repository).version
    feeds = {name: str(array.tolist()) for name, array in FEEDS.items()}
    with ThreadPoolExecutor(4) as pool:
        held = pool.submit(service.predict, {**feeds, "gate": str(gate)})
        wait_until(Path(f"{gate}.waiting").exists, "the worker has the request")
        asked = pool.submit(ask_once, service, protocol, old)
        other = pool.submit(ask_once, service, protocol)
        pending = "paddlewheel_pending_requests"
        wait_until(lambda: service.metric(pending) == 3, "the others wait")
        new = str(add_next(repository))
        loading = pool.submit(order, service, protocol, "load_model")
        assert check(other.result()) == new
        with pytest.raises(InferenceServerException, match=f"'model' version {old} is not found"):
            asked.result()
        gate.touch()
        assert "logits" in held.result()
        loading.result()


def test_orders_given_together_are_followed_one_after_the_other(
    protocol: str, service: ServiceProcess
) -> None:
    processes = []
    with ThreadPoolExecutor(5) as pool:
        orders = [pool.submit(order, service, protocol, "load_model") for _ in range(4)]
        service.process.send_signal(signal.SIGHUP)
        while not all(one.done() for one in orders):
            processes.append(len(service.worker_pids()))
            check(ask_once(service, protocol))
        assert [one.result() for one in orders] == [None] * 4
        assert max(processes) == 2  # the old one and the new one, never more
        mixed = ["unload_model", "load_model"] * 2
        for one in [pool.submit(order, service, protocol, what) for what in mixed]:
            one.result()
    order(service, protocol, "load_model")
    check(ask_once(service, protocol))


def test_sighup_loads_a_new_version(service: ServiceProcess, repository: Path) -> None:
    new = str(add_next(repository))
    service.process.send_signal(signal.SIGHUP)
    with client_of(service) as asking:
        wait_until(lambda: versions_told(asking) == [new], "the new version is served")
        assert check(ask(asking)) == new
        cache = repository / new / "tensorrt_cache"
        cache.mkdir()
        (cache / "engine").touch()  # as a worker writes it
        service.process.send_signal(signal.SIGHUP)
        service.wait_for_log("Nothing to load anew")


def test_an_order_that_can_t_be_followed_is_refused_in_triton_s_words(
    client: Any, service: ServiceProcess
) -> None:
    with pytest.raises(InferenceServerException, match="failed to load 'zzz', failed to poll"):
        client.load_model("zzz")
    with pytest.raises(InferenceServerException, match="failed to load 'model', parameter 'config' is not"):
        client.load_model("model", config='{"max_batch_size": 2}')
    client.unload_model("zzz")  # is as good as unloaded
    refused = service.http("/v2/repository/models/model/load", "{")
    assert (refused.status, "failed to parse the request JSON" in refused.json["error"]) == (500, True)
    assert service.http("/v2/repository/models/model/load").status == 405
    odd = service.http("/v2/repository/models/model/load", '{"parameters": {"precision": "int8"}}')
    assert (odd.status, "unrecognized load parameter 'precision'" in odd.json["error"]) == (400, True)


def test_the_version_that_config_yml_names_is_served(repository: Path) -> None:
    conf = {"model_config": str(repository), "model_version": 1, "device_type": 0}
    config = {"op": {"model": {"local_service_conf": conf}}}
    with ServiceProcess(APPS / "model.py", config) as pinned, client_of(pinned) as asking:
        assert check(ask(asking)) == "1"
        told = asking.get_model_config("model")["version_policy"]
    assert told == {"specific": {"versions": [1]}}


def test_a_link_to_a_model_is_followed_when_it_is_loaded(repository: Path, tmp_path: Path) -> None:
    link, switched = tmp_path / "current", tmp_path / "switched"
    link.symlink_to(repository / "1")
    switched.symlink_to(repository / "2")
    conf = {"model_config": str(link), "device_type": 0}
    config = {"op": {"model": {"local_service_conf": conf}}}
    with ServiceProcess(APPS / "model.py", config) as linked, client_of(linked) as asking:
        np.testing.assert_allclose(ask(asking)[1], EXPECTED["1"], atol=1e-6)
        switched.rename(link)
        asking.load_model("model")
        np.testing.assert_allclose(ask(asking)[1], EXPECTED["2"], atol=1e-6)


def test_a_version_that_is_not_there_is_a_mistake_in_the_configuration(repository: Path) -> None:
    with pytest.raises(ConfigError, match="has no version 99, model_version asks for it; there: 1, 2"):
        choose_version(repository, 99)
    with pytest.raises(ConfigError, match="without versions: remove model_version 4"):
        choose_version(repository / "1", 4)


STATE_CHANGES = (
    "/v2/repository/models/test/load",
    "/v2/repository/models/test/unload",
    "/v2/systemsharedmemory/region/a/register",
    "/v2/systemsharedmemory/unregister",
    "/v2/cudasharedmemory/region/a/register",
    "/v2/trace/setting",
    "/v2/models/test/trace/setting",
    "/v2/logging",
)


@pytest.mark.parametrize("path", STATE_CHANGES)
@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://127.0.0.1:1"}, 403),
        ({"Origin": "http://evil.example", "Content-Type": "text/plain"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Content-Type": "text/plain; charset=utf-8"}, 415),
        ({"Content-Type": "multipart/form-data; boundary=x"}, 415),
        ({"Content-Type": "application/x-www-form-urlencoded", "User-Agent": "Mozilla/5.0 (X11)"}, 415),
    ],
)
def test_a_page_of_another_site_changes_nothing(
    service: ServiceProcess, path: str, headers: dict[str, str], status: int
) -> None:
    answer = service.http(path, b"{}", headers=headers)
    assert answer.status == status
    assert "error" in answer.json
    assert service.http("/v2/models/test/ready").status == 200


def test_curl_and_the_clients_in_cpp_may_change_settings_with_their_content_type(
    service: ServiceProcess,
) -> None:
    headers = {"Content-Type": "application/x-www-form-urlencoded", "User-Agent": "curl/8.5.0"}
    assert service.http("/v2/logging", b"{}", headers=headers).status == 200
    del headers["User-Agent"]
    assert service.http("/v2/logging", b"{}", headers=headers).status == 200


@pytest.mark.parametrize("own", [True, False])
def test_a_page_of_the_server_itself_and_clients_without_a_content_type_may_load(
    service: ServiceProcess, own: bool
) -> None:
    headers = {"Content-Type": "application/json", "Origin": service.url, "Sec-Fetch-Site": "same-origin"}
    assert (
        service.http("/v2/repository/models/test/load", b"{}", headers=headers if own else {}).status == 200
    )
    assert service.http("/v2/logging", b"{}", headers=headers if own else {}).status == 200
