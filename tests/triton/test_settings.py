"""What config.pbtxt says beside tensors: warm-up, batches, order of answers, queues, packages, figures."""

from __future__ import annotations

import json
import sys
import tarfile
import threading
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as rpc

from tests.support.front_memory import front_bytes
from tests.support.repository_process import RepositoryProcess
from tests.support.service_process import PATIENCE_S, wait_until
from tests.support.triton_repository import write_model

X = 'input { name: "X" data_type: TYPE_FP32 dims: 1 }\noutput { name: "Y" data_type: TYPE_FP32 dims: 1 }\n'
PYTHON = f'backend: "python"\n{X}'
# Waits for a file of the name that its parameter "until" tells, then makes that of its parameter "makes".
# Answers how many requests it had before.
WAITS = """
class TritonPythonModel:
    before = 0

    def execute(self, requests):
        import json, time
        from pathlib import Path
        answers = []
        for request in requests:
            told = json.loads(request.parameters())
            while "until" in told and not Path(told["until"]).exists():
                time.sleep(0.002)
            if "makes" in told:
                Path(told["makes"]).touch()
            x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("Y", x * 0 + self.before)]))
            self.before += 1
        return answers
"""
# Answers how many rows it was given before the first request, and counts what it does.
COUNTS = """
class TritonPythonModel:
    def initialize(self, args):
        self.rows = 0
        kind = pb_utils.MetricFamily.COUNTER
        self.family = pb_utils.MetricFamily("rows_seen", "Rows that were seen.", kind)
        self.seen = self.family.Metric(labels={"model": args["model_name"]})
        kind = pb_utils.MetricFamily.HISTOGRAM
        told = pb_utils.MetricFamily("row_sums", "Sums of rows.", kind)
        self.sums = told.Metric(labels={}, buckets=[1, 10])

    def execute(self, requests):
        answers = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.full_like(x, self.rows))]))
            self.rows += len(x)
            self.seen.increment(len(x))
            self.sums.observe(float(x.sum()))
        return answers
"""
WARMUP = """
model_warmup [
  { name: "zeros" batch_size: 2 count: 3
    inputs { key: "X" value { data_type: TYPE_FP32 dims: 1 zero_data: true } } },
  { name: "file" batch_size: 1
    inputs { key: "X" value { data_type: TYPE_FP32 dims: 1 input_data_file: "row" } } } ]
"""
IMPORTS = """
import {module}
class TritonPythonModel:
    def execute(self, requests):
        x = [pb_utils.get_input_tensor_by_name(request, "X").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", one * {module}.FACTOR)]) for one in x]
"""
PACKED = (
    'parameters { key: "EXECUTION_ENV_PATH" value { string_value: "$$TRITON_MODEL_DIRECTORY/env.tar.gz" } }'
)
POLICY = (
    "dynamic_batching { default_queue_policy { timeout_action: DELAY allow_timeout_override: true } }\n"
    "max_batch_size: 1\n"
)
# Its timeout is longer than the tests run: what is kept until then is kept for good.
PATIENT = """
max_batch_size: 1
dynamic_batching { default_queue_policy { timeout_action: REJECT default_timeout_microseconds: 3600000000 } }
"""
LONG_ROWS = """
backend: "python"
input { name: "X" data_type: TYPE_UINT8 dims: -1 }
output { name: "Y" data_type: TYPE_FP32 dims: 1 }
"""
FIRST_OF_ROW = """
class TritonPythonModel:
    def execute(self, requests):
        rows = [pb_utils.get_input_tensor_by_name(request, "X").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", row[:, :1].astype("f"))]) for row in rows]
"""
ROW_BYTES, ROWS = 1 << 20, 200
GRAPHIC = """
backend: "python"
input { name: "X" data_type: TYPE_FP32 dims: 1 }
output { name: "Y" data_type: TYPE_STRING dims: 1 }
"""
# Answers with the devices that it was given.
DEVICES = """
import json
class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        assert all(group["kind"] == "KIND_CPU" for group in config.as_dict()["instance_group"])

    def initialize(self, args):
        group = json.loads(args["model_config"])["instance_group"][0]
        instance = args["model_instance_kind"], args["model_instance_device_id"]
        self.devices = " ".join(map(str, (group["kind"], group["gpus"], *instance)))

    def execute(self, requests):
        tensor = pb_utils.Tensor("Y", np.array([self.devices], dtype=object))
        return [pb_utils.InferenceResponse([tensor]) for _ in requests]
"""
LEVELS = """
max_batch_size: 1
dynamic_batching {
  priority_levels: 2
  default_priority_level: 2
  priority_queue_policy { key: 1 value { max_queue_size: 1 } }
}
"""


def write_repository(folder: Path) -> Path:
    preferred = "max_batch_size: 8\ndynamic_batching { preferred_batch_size: 2 max_queue_delay_microseconds: "
    write_model(folder, "pairs", f"{PYTHON}{preferred}600000000 }}", WAITS)
    two = "max_batch_size: 1\ndynamic_batching { preserve_ordering: true }\ninstance_group { count: 2 }\n"
    write_model(folder, "ordered", f"{PYTHON}{two}", WAITS)
    write_model(folder, "delays", f"{PYTHON}{POLICY}", WAITS)
    write_model(folder, "patient", f"{LONG_ROWS}{PATIENT}", FIRST_OF_ROW)
    write_model(folder, "levels", f"{PYTHON}{LEVELS}", WAITS)
    warm = write_model(folder, "warm", f"{PYTHON}max_batch_size: 4\n{WARMUP}", COUNTS)
    (warm / "warmup").mkdir()
    (warm / "warmup" / "row").write_bytes(np.float32(3).tobytes())
    cold = WARMUP.replace("dims: 1 zero", "dims: 2 zero").replace('key: "X"', 'key: "Z"', 1)
    (write_model(folder, "cold", f"{PYTHON}max_batch_size: 4\n{cold}", COUNTS) / "warmup").mkdir()
    groups = "instance_group { kind: KIND_GPU gpus: 0 count: 2 }"
    write_model(folder, "graphic", f"{GRAPHIC}{groups}", DEVICES)
    _write_packed(write_model(folder, "packed", f"{PYTHON}{PACKED}", IMPORTS.format(module="packed_words")))
    _write_required(write_model(folder, "required", PYTHON, IMPORTS.format(module="required_words")))
    return folder


def _write_packed(model: Path) -> None:
    """An environment as conda-pack makes it, with one module."""
    packages = model / "env" / "lib" / f"python3.{sys.version_info.minor}" / "site-packages"
    packages.mkdir(parents=True)
    (packages / "packed_words.py").write_text("FACTOR = 5\n", "utf-8")
    with tarfile.open(model / "env.tar.gz", "w:gz") as archive:
        archive.add(model / "env" / "lib", "lib")


def _write_required(model: Path) -> None:
    """A requirements.txt with a package that is beside it."""
    info = "required_words-1.0.dist-info"
    with zipfile.ZipFile(model / "required_words-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("required_words.py", "FACTOR = 7\n")
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: required-words\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    lines = f"--no-index\n--find-links {model}\nnumpy\nrequired-words\n"
    (model / "requirements.txt").write_text(lines, "utf-8")


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RepositoryProcess]:
    env = {"XDG_CACHE_HOME": str(tmp_path_factory.mktemp("cache"))}
    folder = write_repository(tmp_path_factory.mktemp("settings"))
    arguments = ["--install-requirements"]
    with RepositoryProcess(folder, arguments=arguments, env=env, wait=False) as process:
        process.wait_for_log("is ready: http_port")
        yield process


@pytest.fixture
def client(settings: RepositoryProcess) -> Iterator[rpc.InferenceServerClient]:
    with rpc.InferenceServerClient(settings.rpc_address) as made:
        yield made


def row(model: str, value: float = 1.0) -> list[rpc.InferInput]:
    rows = [] if model in ("graphic", "packed", "required") else [1]
    made = rpc.InferInput("X", [*rows, 1], "FP32")
    made.set_data_from_numpy(np.full([*rows, 1], value, np.float32))
    return [made]


class Answers:
    """Of calls that are under way together: refusals, then names in the order in which the model had them."""

    def __init__(self, client: rpc.InferenceServerClient, model: str) -> None:
        self._found: list[tuple[float, str]] = []
        self._client, self._model = client, model
        self._all = threading.Condition()

    def ask(self, name: str, timeout: int | None = None, priority: int = 0, **parameters: str) -> None:
        self._client.async_infer(
            self._model,
            row(self._model),
            self._taker(name),
            parameters=parameters,
            timeout=timeout,
            priority=priority,
        )

    def _taker(self, name: str) -> Callable[[Any, Any], None]:
        def take(result: Any, error: Any) -> None:
            with self._all:
                place = -1.0 if error else float(result.as_numpy("Y").flat[0])
                self._found.append((place, f"{name}: {error}" if error else name))
                self._all.notify_all()

        return take

    def wait_for(self, count: int) -> list[str]:
        with self._all:
            assert self._all.wait_for(lambda: len(self._found) >= count, PATIENCE_S)
            return [name for _, name in sorted(self._found)]


def test_a_preferred_size_leaves_without_the_queue_delay(client: rpc.InferenceServerClient) -> None:
    answers = Answers(client, "pairs")
    answers.ask("first")
    answers.ask("second")
    answers.wait_for(2)
    told = client.get_inference_statistics("pairs", as_json=True)["model_stats"][0]
    assert [batch["batch_size"] for batch in told["batch_stats"]] == ["2"]


def test_a_preferred_size_counts_rows(client: rpc.InferenceServerClient) -> None:
    two = rpc.InferInput("X", [2, 1], "FP32")
    two.set_data_from_numpy(np.ones((2, 1), np.float32))
    assert client.infer("pairs", [two]).as_numpy("Y").shape == (2, 1)


def test_answers_keep_the_order_of_requests_where_that_is_asked_for(
    settings: RepositoryProcess, client: rpc.InferenceServerClient, tmp_path: Path
) -> None:
    answers = Answers(client, "ordered")
    ran, go = tmp_path / "ran", tmp_path / "go"
    answers.ask("first", until=str(go))
    _wait_for_pending(settings, 1)
    answers.ask("second", makes=str(ran))
    wait_until(ran.exists, "the second has run")
    for _ in range(50):
        client.is_server_live()
    assert answers.wait_for(0) == []
    go.touch()
    assert sorted(answers.wait_for(2)) == ["first", "second"]


def test_a_late_request_goes_behind_the_others_where_the_policy_delays(
    settings: RepositoryProcess, client: rpc.InferenceServerClient, tmp_path: Path
) -> None:
    answers = Answers(client, "delays")
    answers.ask("holds", until=str(tmp_path / "go"))
    _wait_for_pending(settings, 1)
    answers.ask("late", timeout=1)
    _wait_for_pending(settings, 2)
    answers.ask("patient")
    _wait_for_pending(settings, 3)
    (tmp_path / "go").touch()
    assert answers.wait_for(3) == ["holds", "patient", "late"]


def test_requests_of_a_higher_priority_go_first_as_many_as_their_policy_lets_wait(
    settings: RepositoryProcess, client: rpc.InferenceServerClient, tmp_path: Path
) -> None:
    answers = Answers(client, "levels")
    answers.ask("holds", until=str(tmp_path / "go"))
    _wait_for_pending(settings, 1)
    for number, (name, priority) in enumerate((("low", 0), ("lower", 2), ("high", 1)), 2):
        answers.ask(name, priority=priority)
        _wait_for_pending(settings, number)
    answers.ask("one too many", priority=1)
    (refused,) = answers.wait_for(1)
    assert refused.startswith("one too many: ") and "Exceeds maximum queue size" in refused
    (tmp_path / "go").touch()
    assert answers.wait_for(5)[1:] == ["holds", "high", "low", "lower"]


def test_a_queue_policy_keeps_no_inputs_of_answered_requests(
    settings: RepositoryProcess, client: rpc.InferenceServerClient
) -> None:
    tensor = rpc.InferInput("X", [1, ROW_BYTES], "UINT8")
    tensor.set_data_from_numpy(np.zeros((1, ROW_BYTES), np.uint8))
    client.infer("patient", [tensor])
    before = front_bytes(settings)
    for _ in range(ROWS):
        client.infer("patient", [tensor])
    assert front_bytes(settings) - before < ROWS * ROW_BYTES / 4


def _wait_for_pending(settings: RepositoryProcess, count: int) -> None:
    wait_until(lambda: settings.metric("paddlewheel_pending_requests") == count, f"{count} requests wait")


def test_samples_are_run_before_the_first_request(
    settings: RepositoryProcess, client: rpc.InferenceServerClient
) -> None:
    assert client.infer("warm", row("warm")).as_numpy("Y").item() == 7
    assert settings.metric("rows_seen", model="warm") == 8
    assert settings.metric("row_sums_bucket", le="10.0") == 5


def test_a_sample_that_does_not_fit_leaves_the_model_unavailable(settings: RepositoryProcess) -> None:
    rows = {one["name"]: one for one in settings.http("/v2/repository/index", b"").json}
    assert rows["cold"]["state"] == "UNAVAILABLE"
    assert "missing required input(s) ['X']" in rows["cold"]["reason"]


def test_a_model_that_asks_for_a_gpu_is_told_of_once_and_finds_a_cpu(settings: RepositoryProcess) -> None:
    assert settings.log.count("Model graphic: its KIND_GPU runs on the CPU") == 1
    (group,) = settings.http("/v2/models/graphic/config").json["instance_group"]
    assert (group["kind"], group["gpus"], group["count"]) == ("KIND_CPU", [], 2)
    x = {"name": "X", "shape": [1], "datatype": "FP32", "data": [0]}
    answer = settings.http("/v2/models/graphic/infer", json.dumps({"inputs": [x]}))
    assert answer.json["outputs"][0]["data"] == ["KIND_CPU [] CPU 0"]


@pytest.mark.parametrize(("model", "factor"), [("packed", 5), ("required", 7)])
def test_a_model_finds_the_packages_that_it_brings_along(
    client: rpc.InferenceServerClient, model: str, factor: int
) -> None:
    assert client.infer(model, row(model, 2)).as_numpy("Y").item() == 2 * factor
