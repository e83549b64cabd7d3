"""What every dialect keeps to, those of this package and one of another; and what is said of a bad one."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import pytest

from client.protos.kserve_v2_pb2 import ModelInferRequest
from client.protos.pipeline_service_pb2 import Request
from pipeline import plugins
from pipeline.errors import ConfigError
from tests.support.service_process import APPS, ROOT, ServiceProcess, key_value, wait_until

LINES = ROOT / "tests" / "fixtures" / "lines_dialect"
CONFIG: dict[str, Any] = {
    "dag": {"http_errors": "status", "max_pending_requests": 1},
    "limits": {"text_chars": 100},
    "op": {"capitals": {"concurrency": 1}},
}
BUILT_IN = ["key_value", "kserve_v1", "kserve_v2", "openai", "tei"]
TOO_LONG, APPS_OWN, OVERLOADED = 5000, 51, 3001

Outcome = tuple[int | str, str]  # the status or err_no, and what was said


def by_http(path: str, body: Callable[[str], bytes | str]) -> Callable[[ServiceProcess, str], Outcome]:
    def ask(service: ServiceProcess, text: str) -> Outcome:
        answer = service.http(path, body(text))
        return answer.status, answer.body.decode()

    return ask


def v1_body(text: str) -> str:
    return json.dumps({"instances": [{"text": text}]})


def v2_body(text: str) -> str:
    return json.dumps({"inputs": [{"name": "text", "datatype": "BYTES", "shape": [1], "data": [text]}]})


def by_pipeline_service(service: ServiceProcess, text: str) -> Outcome:
    try:
        answer = service.rpc(Request(name="test", method="prediction", key=["text"], value=[text]))
    except grpc.RpcError as exc:
        return exc.code().name, exc.details()
    return answer.err_no, " ".join(answer.value) or answer.err_msg


def by_v2_rpc(service: ServiceProcess, text: str) -> Outcome:
    request = ModelInferRequest(model_name="test")
    tensor = request.inputs.add(name="text", datatype="BYTES", shape=[1])
    tensor.contents.bytes_contents.append(text.encode())
    method = "/inference.GRPCInferenceService/ModelInfer"
    try:
        answer = service.raw_rpc(request.SerializeToString(), method=method)
    except grpc.RpcError as exc:
        return exc.code().name, exc.details()
    return 0, answer.decode("latin-1")


class Endpoint(NamedTuple):
    """How a service is asked, and what is said where it answers, refuses, fails and sheds."""

    ask: Callable[[ServiceProcess, str], Outcome]
    answered: int | str
    too_long: int | str
    failed: int | str
    overloaded: int | str


ENDPOINTS = {
    "http": Endpoint(by_http("/test/prediction", lambda text: key_value({"text": text})), 200, 413, 400, 429),
    "grpc": Endpoint(by_pipeline_service, 0, TOO_LONG, APPS_OWN, "RESOURCE_EXHAUSTED"),
    "v1-http": Endpoint(by_http("/v1/models/test:predict", v1_body), 200, 413, 400, 429),
    "v2-http": Endpoint(by_http("/v2/models/test/infer", v2_body), 200, 413, 400, 503),
    "v2-grpc": Endpoint(by_v2_rpc, 0, "INVALID_ARGUMENT", "INVALID_ARGUMENT", "UNAVAILABLE"),
    "lines": Endpoint(by_http("/lines/test", lambda text: f"{text}\n"), 200, 413, 400, 429),
}
every_endpoint = pytest.mark.parametrize("name", ENDPOINTS)


@pytest.fixture(scope="module")
def gate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gate") / "gate"


@pytest.fixture(scope="module")
def service(gate: Path) -> Iterator[ServiceProcess]:
    with ServiceProcess(
        APPS / "dialects.py", CONFIG, env=environment(LINES) | {"GATE": str(gate)}
    ) as started:
        yield started


def environment(*folders: Path) -> dict[str, str]:
    return {"PYTHONPATH": os.pathsep.join(map(str, (ROOT, *folders)))}


def counted(service: ServiceProcess, endpoint: str, err_no: int) -> float:
    return service.metric("paddlewheel_requests_total", door=endpoint, err_no=str(err_no or "ok"))


@every_endpoint
def test_a_request_is_answered_and_counted(service: ServiceProcess, name: str) -> None:
    before = counted(service, name, 0)
    status, text = ENDPOINTS[name].ask(service, "wheel")
    assert status == ENDPOINTS[name].answered and "WHEEL" in text, text
    assert counted(service, name, 0) == before + 1


@every_endpoint
def test_a_request_over_a_limit_is_refused_and_counted(service: ServiceProcess, name: str) -> None:
    status, text = ENDPOINTS[name].ask(service, "x" * 101)
    assert status == ENDPOINTS[name].too_long and "limits.text_chars" in text, text
    assert counted(service, name, TOO_LONG) == 1


@every_endpoint
def test_an_error_of_the_apps_is_told_and_counted(service: ServiceProcess, name: str) -> None:
    status, text = ENDPOINTS[name].ask(service, "fail")
    assert status == ENDPOINTS[name].failed and "can't be written in capitals" in text, text
    assert counted(service, name, APPS_OWN) == 1


@every_endpoint
def test_an_overload_is_shed_and_counted(service: ServiceProcess, gate: Path, name: str) -> None:
    gate.unlink(missing_ok=True)
    waiting = Path(f"{gate}.waiting")
    waiting.unlink(missing_ok=True)
    with ThreadPoolExecutor(1) as pool:
        held = pool.submit(ENDPOINTS[name].ask, service, "wait")
        try:
            wait_until(waiting.exists, "the worker is busy")
            status, text = ENDPOINTS[name].ask(service, "wheel")
        finally:
            gate.touch()
        assert status == ENDPOINTS[name].overloaded and "1 requests are pending" in text, text
        assert held.result()[0] == ENDPOINTS[name].answered
    assert counted(service, name, OVERLOADED) == 1


def test_another_packages_dialect_refuses_in_its_own_form(service: ServiceProcess) -> None:
    answer = service.http("/lines/test", "one\ntwo\n")
    assert (answer.status, answer.body) == (200, b"ONE\nTWO\n")
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    refusal = service.http("/lines/test", b"\xff")
    assert (refusal.status, refusal.headers["content-type"]) == (400, "text/plain; charset=utf-8")
    assert refusal.body == b"the body is no UTF-8: invalid start byte at byte 0\n"
    assert service.http("/lines/other", "one\n").status == 404
    assert service.http("/lines/test").status == 405
    too_large = service.http("/lines/test", b"", headers={"content-length": str(1 << 40)})
    assert (too_large.status, too_large.headers["content-type"]) == (413, "text/plain; charset=utf-8")


def test_another_packages_dialect_asks_an_app_that_unpacks_messages_itself() -> None:
    with ServiceProcess(
        APPS / "dialects.py", CONFIG, arguments=["unpacks"], env=environment(LINES)
    ) as service:
        answer = service.http("/lines/test", "one\n国 two\n")
        assert (answer.status, answer.body.decode()) == (200, "ONE\n国 TWO\n")
        assert service.predict({"text": "one"})["capitals"] == "['ONE']"


def test_a_worker_imports_no_part_of_the_front(service: ServiceProcess) -> None:
    assert service.http("/lines/test", "modules\n").body == b"NONE\n"


def test_a_request_that_can_t_be_handed_over_is_in_nobody_s_way(service: ServiceProcess) -> None:
    answer = service.http("/lines/test", "no message\n")
    assert (answer.status, b"can't be handed to Op" in answer.body) == (500, True), answer
    assert service.http("/lines/test", "one\n").body == b"ONE\n"


# Which dialects there are:


def package(folder: Path, name: str, entry: str, code: str) -> Path:
    """A folder with an installed distribution of one module."""
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{plugins.DIALECTS}]\n{entry}\n")
    (folder / f"{name.replace('-', '_')}.py").write_text(code)
    return folder


BROKEN = "raise OSError('the license server is down')\n"
ODD = "class Odd:\n    name = 'odd'\n    def front(self, scheduler, repository): ...\nODD = Odd()\n"
FRONT_FAILS = (
    "class Odd:\n    name = 'odd'\n    def front(self, scheduler, repository): return 1 / 0\n"
    "    def worker(self): ...\nODD = Odd()\n"
)
WORKER_FAILS = (
    "from pipeline.dialects.dialect import FrontPart\n"
    "class Odd:\n    name = 'odd'\n    def front(self, scheduler, repository): return FrontPart()\n"
    "    def worker(self): return 1 / 0\nODD = Odd()\n"
)
SAME_PATH = (
    "from pipeline.dialects.dialect import FrontPart, WorkerPart\n"
    "class Odd:\n    name = 'odd'\n"
    "    def front(self, scheduler, repository): return FrontPart(prefixes=['/v1/'])\n"
    "    def worker(self): return WorkerPart(forms={})\nODD = Odd()\n"
)
SAME_FORM = (
    "from pipeline.dialects.dialect import FrontPart, WorkerPart\n"
    "class Odd:\n    name = 'odd'\n    def front(self, scheduler, repository): return FrontPart()\n"
    "    def worker(self): return WorkerPart(forms={'kserve_v1.json': None})\nODD = Odd()\n"
)


@pytest.mark.parametrize(
    ("entry", "code", "told"),
    [
        ("odd = odd_dialect:ODD", BROKEN, "odd-dialect can't be loaded: OSError: the license server is down"),
        ("odd = odd_dialect:OTHER", ODD, "odd-dialect can't be loaded: AttributeError"),
        ("odd = odd_dialect:ODD", ODD, "odd_dialect:ODD of odd-dialect is no dialect 'odd'"),
        ("kserve_v1 = odd_dialect:ODD", ODD, "there are two dialects with the name 'kserve_v1'"),
        ("odd = odd_dialect:ODD", FRONT_FAILS, "odd-dialect can't be loaded: ZeroDivisionError"),
        ("odd = odd_dialect:ODD", WORKER_FAILS, "odd-dialect can't be loaded: ZeroDivisionError"),
        ("odd = odd_dialect:ODD", SAME_PATH, "odd of odd-dialect both answer at /v1/"),
        ("odd = odd_dialect:ODD", SAME_FORM, "dialect odd of odd-dialect has a form 'kserve_v1.json'"),
    ],
)
def test_a_dialect_that_can_not_be_served_is_one_sentence_at_the_start(
    tmp_path: Path, entry: str, code: str, told: str
) -> None:
    env = environment(package(tmp_path, "odd-dialect", entry, code))
    with ServiceProcess(APPS / "dialects.py", CONFIG, env=env, wait=False) as service:
        assert service.exit_code() == 1
        assert told in service.log and "Traceback" not in service.log


def found_anew() -> Mapping[str, plugins.Plugin]:
    plugins.find.cache_clear()
    return plugins.find(plugins.DIALECTS)


def test_the_built_in_dialects_are_found_with_and_without_an_installation(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    of_checkout = found_anew()
    assert list(of_checkout) == BUILT_IN
    with monkeypatch.context() as patched:
        patched.setattr(plugins, "entry_points", lambda group: [])
        assert found_anew() == of_checkout
        patched.setattr(plugins, "_CHECKOUT", tmp_path / "pyproject.toml")
        with pytest.raises(ConfigError, match=r"the entry points .* are missing"):
            found_anew()
    monkeypatch.setattr(plugins, "_CHECKOUT", tmp_path / "pyproject.toml")
    assert found_anew() == of_checkout  # from what pip has noted
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'an-app'\n")
    assert found_anew() == of_checkout
