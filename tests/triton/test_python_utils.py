"""`triton_python_backend_utils` as models use it beside requests and answers."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.support.repository_process import RepositoryProcess
from tests.support.service_process import HttpAnswer
from tests.support.triton_repository import write_model

TENSORS = """
backend: "python"
input { name: "WHAT" data_type: TYPE_STRING dims: 1 }
output { name: "TOLD" data_type: TYPE_STRING dims: 1 }
"""
TRIES = """
import os

NAMES = (
    "Tensor InferenceRequest InferenceResponse TritonError TritonModelException Logger Metric MetricFamily "
    "ModelConfig PreferredMemory InferenceTrace TRITON_STRING_TO_NUMPY TRITONSERVER_MEMORY_CPU "
    "TRITONSERVER_MEMORY_GPU TRITONSERVER_REQUEST_FLAG_SEQUENCE_START TRITONSERVER_REQUEST_FLAG_SEQUENCE_END "
    "TRITONSERVER_RESPONSE_COMPLETE_FINAL TRITONSERVER_REQUEST_RELEASE_ALL "
    "TRITONSERVER_REQUEST_RELEASE_RESCHEDULE deserialize_bytes_tensor serialize_byte_tensor "
    "get_input_config_by_name get_input_tensor_by_name get_output_config_by_name get_output_tensor_by_name "
    "using_decoupled_model_transaction_policy triton_to_numpy_type numpy_to_triton_type "
    "triton_string_to_numpy get_model_dir load_model unload_model is_model_ready"
).split()


class TritonPythonModel:
    def initialize(self, args):
        self.config = __import__("json").loads(args["model_config"])
        pb_utils.Logger.log_warn(f"tries begins as {args['model_name']} {args['model_version']}")

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        what = pb_utils.get_input_tensor_by_name(request, "WHAT").as_numpy()[0].decode()
        told = np.array([str(getattr(self, what)())], dtype=object)
        return pb_utils.InferenceResponse([pb_utils.Tensor("TOLD", told)])

    def names(self):
        return [name for name in NAMES if not hasattr(pb_utils, name)]

    def types(self):
        kinds = [np.bool_, np.uint8, np.int64, np.float16, np.float32, np.object_]
        numbers = [pb_utils.numpy_to_triton_type(kind) for kind in kinds]
        back = [pb_utils.triton_to_numpy_type(number) for number in numbers]
        own = pb_utils.get_output_config_by_name(self.config, "TOLD")["data_type"]
        return back == kinds, pb_utils.triton_string_to_numpy(own) is np.object_, numbers[-1]

    def texts(self):
        given = np.array([["ab", b"c"], ["", "国"]], dtype=object)
        return pb_utils.deserialize_bytes_tensor(pb_utils.serialize_byte_tensor(given)).tolist()

    def dlpack(self):
        tensor = pb_utils.Tensor("x", np.arange(4, dtype=np.float32))
        again = pb_utils.Tensor.from_dlpack("y", tensor.to_dlpack())
        other = pb_utils.Tensor.from_dlpack("z", np.arange(4, dtype=np.float32))
        return again.is_cpu(), again.name(), (again.as_numpy() == other.as_numpy()).all()

    def argv(self):
        return __import__("sys").argv

    def bool_type(self):
        return pb_utils.triton_string_to_numpy("TYPE_BOOL") is bool

    def log(self):
        logger = pb_utils.Logger
        logger.log("one line", logger.LogLevel.INFO)
        logger.log("another line")
        logger.log_info("a third line")
        logger.log_verbose("a hidden line")
        return [level.name for level in logger.LogLevel]

    def raised(self, call, *arguments, **named):
        try:
            return call(*arguments, **named)
        except (TypeError, pb_utils.TritonModelException) as exc:
            return f"{type(exc).__name__}: {exc}"

    def wrong_family(self):
        family, kind = pb_utils.MetricFamily, pb_utils.MetricFamily.COUNTER
        counter = family("wrong_counter", "Counts.", kind)
        return [
            self.raised(family, "wrong", "Unknown kind.", 7)[:9],
            self.raised(family, None, "No name.", kind)[:9],
            self.raised(counter.Metric, labels=[1]),
            self.raised(counter.Metric(labels={}).increment, -1)[:56],
            self.raised(counter.Metric(labels={}).set, 1),
        ]

    def wrong_request(self):
        make = pb_utils.InferenceRequest
        named = {"model_name": "m", "requested_output_names": ["OUT"], "inputs": []}
        return [
            self.raised(make, model_name="m", requested_output_names=["OUT"])[:9],
            self.raised(make, **{**named, "inputs": [None]}),
            self.raised(make, **{**named, "requested_output_names": [""]}),
            self.raised(make, **named, correlation_id=[]),
            self.raised(make, **named, parameters=[]),
            self.raised(make, **named, parameters={"a": None}),
        ]

    def wrong_response(self):
        make = pb_utils.InferenceResponse
        return [
            self.raised(make, [1])[:9],
            self.raised(make, [None]),
            self.raised(make, error="text")[:9],
            self.raised(make, parameters=[]),
            self.raised(make, parameters={1: "a"}),
            self.raised(make, parameters={"a": 0.5}),
        ]

    def wrong_values(self):
        make, logger = pb_utils.Tensor.from_dlpack, pb_utils.Logger
        return [
            *(self.raised(make, *arguments)[:20] for arguments in (("x", None), ("", np.zeros(1)))),
            *(self.raised(log, None)[:9] for log in (logger.log, logger.log_info, logger.log_verbose)),
            self.raised(logger.log, "text", 1)[:9],
        ]

    def folder(self):
        return os.path.basename(os.path.dirname(pb_utils.get_model_dir()))

    def load(self):
        before = pb_utils.is_model_ready("other")
        pb_utils.load_model(model_name="other")
        return before, pb_utils.is_model_ready("other"), pb_utils.is_model_ready("other", "1")

    def unload(self):
        pb_utils.unload_model("other")
        return pb_utils.is_model_ready("other")

    def lost(self):
        try:
            pb_utils.load_model("nobody")
        except pb_utils.TritonModelException as exc:
            return exc
"""

LOADS = """
class TritonPythonModel:
    def initialize(self, args):
        if not pb_utils.is_model_ready("needed", "1"):
            pb_utils.load_model(model_name="needed")

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        asked = pb_utils.InferenceRequest(
            model_name="needed", requested_output_names=["TOLD"], inputs=request.inputs()
        )
        return asked.exec()
"""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RepositoryProcess]:
    folder = tmp_path_factory.mktemp("utils")
    write_model(folder, "tries", TENSORS, TRIES)
    write_model(folder, "other", TENSORS.replace('"python"', '"identity"'))
    write_model(folder, "needed", TENSORS.replace('"python"', '"identity"'))
    write_model(folder, "loads", TENSORS, LOADS)
    arguments = ["--model-control-mode=explicit", "--load-model=tries"]
    with RepositoryProcess(folder, arguments=arguments) as process:
        yield process


def ask(service: RepositoryProcess, what: str, model: str = "tries") -> HttpAnswer:
    given = {"name": "WHAT", "shape": [1], "datatype": "BYTES", "data": [what]}
    return service.http(f"/v2/models/{model}/infer", json.dumps({"inputs": [given]}))


@pytest.mark.parametrize(
    ("what", "told"),
    [
        ("names", "[]"),
        ("types", "(True, True, 13)"),
        ("texts", r"[b'ab', b'c', b'', b'\xe5\x9b\xbd']"),
        ("dlpack", "(True, 'y', True)"),
        ("folder", "tries"),
        ("argv", "['']"),
        ("bool_type", "True"),
        ("log", "['INFO', 'WARNING', 'ERROR', 'VERBOSE']"),
        (
            "wrong_family",
            "['TypeError', 'TypeError', \"TritonModelException: Expect dict, got <class 'list'>\", "
            "'TritonModelException: Failed to increment metric value: ', "
            "'TritonModelException: Failed to set metric value: TRITONSERVER_METRIC_KIND_COUNTER does not "
            "support Set']",
        ),
        (
            "wrong_request",
            "['TypeError', "
            "\"TritonModelException: Input tensor for request with id '' and model name 'm' should not be "
            'empty.", '
            "\"TritonModelException: Requested output name for request with id '' and model name 'm' should "
            'not be empty.", '
            "'TritonModelException: Correlation ID must be integer or string', "
            "\"TritonModelException: Expect dict, got <class 'list'>\", "
            '"TritonModelException: Expect parameters values to have type bool/int/str, found type <class '
            "'NoneType'>\"]",
        ),
        (
            "wrong_response",
            "['TypeError', "
            "'TritonModelException: Output tensor for inference response should not be empty.', "
            "'TypeError', \"TritonModelException: Expect dict, got <class 'list'>\", "
            "\"TritonModelException: Expect parameters keys to have type str, found type <class 'int'>\", "
            '"TritonModelException: Expect parameters values to have type bool/int/str, found type <class '
            "'float'>\"]",
        ),
        ("wrong_values", str(2 * ["TritonModelException"] + 4 * ["TypeError"])),
        ("load", "(False, True, True)"),
        ("unload", "False"),
        ("lost", "failed to load 'nobody', failed to poll from model repository"),
    ],
)
def test_a_model_finds_what_the_module_has_in_triton(
    service: RepositoryProcess, what: str, told: str
) -> None:
    answer = ask(service, what)
    assert answer.status == 200, answer
    assert answer.json["outputs"][0]["data"][0].replace("np.True_", "True") == told


def test_a_model_that_is_loaded_loads_the_one_that_it_asks(service: RepositoryProcess) -> None:
    loaded = service.http("/v2/repository/models/loads/load", b"")
    assert loaded.status == 200, loaded
    assert ask(service, "both", "loads").json["outputs"][0]["data"] == ["both"]


def test_lines_of_a_model_are_in_the_servers_log(service: RepositoryProcess) -> None:
    service.wait_for_log("tries begins as tries 1")
    assert ask(service, "log").status == 200
    for line in ("one line", "another line", "a third line"):
        service.wait_for_log(line)
    assert "a hidden line" not in service.log
