"""Sends arrays by name to a service over each endpoint, with the clients that users have."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import tritonclient.grpc
import tritonclient.http

from bench.models.subject import Array
from client.exchange import Client
from client.http_client import HttpClient
from client.rpc_client import RpcClient
from tests.support.service_process import ServiceProcess

Arrays = Mapping[str, Array]
Ask = Callable[[ServiceProcess, Arrays], dict[str, Array]]
_LIMIT_S = 60.0


def _key_value(service: ServiceProcess, given: Arrays) -> dict[str, Array]:
    return _printed(HttpClient(service.url, service.name, timeout_s=_LIMIT_S, retries=0), given)


def _rpc(service: ServiceProcess, given: Arrays) -> dict[str, Array]:
    return _printed(RpcClient(service.rpc_address, service.name, timeout_s=_LIMIT_S, retries=0), given)


def _printed(client: Client, given: Arrays) -> dict[str, Array]:
    """Ask over key/value, with lists as text and arrays as NumPy prints them."""
    with client:
        answer = client.predict({name: json.dumps(array.tolist()) for name, array in given.items()})
    return {name: np.asarray(array) for name, array in answer.outputs.items()}


def _v1(service: ServiceProcess, given: Arrays) -> dict[str, Array]:
    """Ask over KServe v1: by rows, or with whole arrays if the model takes no rows."""
    metadata = service.http(f"/v2/models/{service.name}").json
    has_rows = all(tensor["shape"][:1] == [-1] for tensor in metadata["inputs"])
    body: dict[str, Any] = {"inputs": {name: array.tolist() for name, array in given.items()}}
    if has_rows:
        rows = zip(*body["inputs"].values(), strict=True)
        body = {"instances": [dict(zip(given, row, strict=True)) for row in rows]}
    answer = service.http(f"/v1/models/{service.name}:predict", json.dumps(body))
    if answer.status != 200:
        raise RuntimeError(answer.json["error"])
    if not has_rows:
        return {name: np.asarray(value) for name, value in answer.json["outputs"].items()}
    answered = answer.json["predictions"]
    return {name: np.asarray([row[name] for row in answered]) for name in answered[0]}


def _v2_http(service: ServiceProcess, given: Arrays, *, binary: bool) -> dict[str, Array]:
    http = tritonclient.http
    address = f"127.0.0.1:{service.http_port}"
    with http.InferenceServerClient(address, network_timeout=_LIMIT_S) as client:
        metadata = client.get_model_metadata(service.name)
        inputs = []
        for name, array in _as_declared(metadata, given).items():
            tensor = http.InferInput(name, list(array.shape), _datatype(metadata, name))
            inputs.append(tensor.set_data_from_numpy(array, binary_data=binary))
        names = [tensor["name"] for tensor in metadata["outputs"]]
        outputs = [http.InferRequestedOutput(name, binary_data=binary) for name in names]
        result = client.infer(service.name, inputs, outputs=outputs)
        return {name: result.as_numpy(name) for name in names}


def _v2_grpc(service: ServiceProcess, given: Arrays) -> dict[str, Array]:
    grpc = tritonclient.grpc
    with grpc.InferenceServerClient(service.rpc_address) as client:
        metadata = client.get_model_metadata(service.name, as_json=True)
        inputs = []
        for name, array in _as_declared(metadata, given).items():
            tensor = grpc.InferInput(name, list(array.shape), _datatype(metadata, name))
            inputs.append(tensor.set_data_from_numpy(array))
        result = client.infer(service.name, inputs, client_timeout=_LIMIT_S)
        return {tensor["name"]: result.as_numpy(tensor["name"]) for tensor in metadata["outputs"]}


def _datatype(metadata: Mapping[str, Any], name: str) -> str:
    (datatype,) = (str(tensor["datatype"]) for tensor in metadata["inputs"] if tensor["name"] == name)
    return datatype


def _as_declared(metadata: Mapping[str, Any], given: Arrays) -> dict[str, Array]:
    """Return arrays of the datatypes that the model declares, with texts as bytes."""
    arrays = {}
    for name, array in given.items():
        if _datatype(metadata, name) == "BYTES":
            texts = [text.encode() for text in array.ravel().tolist()]
            arrays[name] = np.array(texts, object).reshape(array.shape)
        else:
            arrays[name] = array.astype(tritonclient.http.triton_to_np_dtype(_datatype(metadata, name)))
    return arrays


ENDPOINTS: dict[str, Ask] = {
    "key/value HTTP": _key_value,
    "key/value gRPC": _rpc,
    "v1": _v1,
    "v2 HTTP, JSON": partial(_v2_http, binary=False),
    "v2 HTTP, binary": partial(_v2_http, binary=True),
    "v2 gRPC": _v2_grpc,
}
