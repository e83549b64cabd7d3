"""Headers that become parameters of inference requests: `--http-header-forward-pattern`, and gRPC's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as v2_grpc
import tritonclient.http as v2_http
from tritonclient.utils import InferenceServerException

from pipeline.api.header_patterns import compile_pattern
from tests.support.repository_process import RepositoryProcess
from tests.support.triton_repository import write_model

CONFIG = """
backend: "python"
input { name: "I" data_type: TYPE_FP32 dims: [ 1 ] }
output { name: "PARAMETERS" data_type: TYPE_STRING dims: [ 1 ] }
"""
REPEATS_PARAMETERS = """
class TritonPythonModel:
    def execute(self, requests):
        return [
            pb_utils.InferenceResponse(
                [pb_utils.Tensor("PARAMETERS", np.array([request.parameters()], np.object_))]
            )
            for request in requests
        ]
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RepositoryProcess]:
    models = tmp_path_factory.mktemp("models")
    write_model(models, "repeats", CONFIG, REPEATS_PARAMETERS)
    pattern = "My_Header.*|triton_.*"
    flags = [f"--http-header-forward-pattern={pattern}", f"--grpc-header-forward-pattern={pattern}"]
    with RepositoryProcess(models, arguments=flags) as started:
        yield started


def _get_parameters(
    protocol: Any, server: RepositoryProcess, headers: dict[str, str], parameters: dict[str, Any]
) -> Any:
    port = server.http_port if protocol is v2_http else server.rpc_port
    with protocol.InferenceServerClient(f"127.0.0.1:{port}") as client:
        tensor = protocol.InferInput("I", [1], "FP32")
        tensor.set_data_from_numpy(np.zeros(1, np.float32))
        response = client.infer("repeats", [tensor], headers=headers, parameters=parameters)
    return json.loads(response.as_numpy("PARAMETERS")[0])


@pytest.mark.parametrize("protocol", [v2_http, v2_grpc], ids=["http", "grpc"])
def test_matching_headers_become_parameters_as_texts(protocol: Any, server: RepositoryProcess) -> None:
    headers = {"my_header_1": "7", "an_my_header": "found anywhere", "other": "left out"}
    parameters = {"own": 3, "my_header_1": "the header replaces it"}
    assert _get_parameters(protocol, server, headers, parameters) == {
        "own": 3, "my_header_1": "7", "an_my_header": "found anywhere",
    }  # fmt: skip


@pytest.mark.parametrize("protocol", [v2_http, v2_grpc], ids=["http", "grpc"])
def test_a_forwarded_header_with_a_reserved_name_is_refused(protocol: Any, server: RepositoryProcess) -> None:
    with pytest.raises(InferenceServerException, match="reserved for Triton usage"):
        _get_parameters(protocol, server, {"triton_x": "1"}, {})
    assert _get_parameters(protocol, server, {}, {"own": True}) == {"own": True}


def test_a_pattern_may_distinguish_upper_and_lower_case() -> None:
    plain, exact = compile_pattern("NVCF-.*"), compile_pattern("(?-i)NVCF-.*")
    assert plain.search("nvcf-reqid") and exact.search("NVCF-REQID") and not exact.search("nvcf-reqid")
