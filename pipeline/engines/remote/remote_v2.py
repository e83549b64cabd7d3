"""Calls a KServe v2 service over gRPC (`client_type: grpc`), such as Triton."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from google.protobuf.message import DecodeError

from client.protos.kserve_v2_pb2 import (
    ModelInferRequest,
    ModelInferResponse,
    ModelMetadataRequest,
    ModelMetadataResponse,
)
from pipeline.engines.feeds import Array, check_promised
from pipeline.engines.fetches import select_fetches
from pipeline.engines.remote.remote_predictor import Endpoints, RemoteConf, RemotePredictor
from pipeline.errors import (
    ConfigError,
    DeadlineExceeded,
    InvalidInput,
    ModelFailed,
    Overloaded,
    RemoteUnreachable,
    ServingError,
)
from pipeline.models.dtypes import BY_DATATYPE, BY_NAME
from pipeline.models.serving_model import Variable
from pipeline.wire.v2_tensors import from_contents, from_raw, to_raw

log = logging.getLogger(__name__)

SERVICE = "/inference.GRPCInferenceService"
START_PATIENCE_S = 5.0  # wait for the metadata at start-up; then the Op starts without it


class _Signature(NamedTuple):
    feeds: tuple[Variable, ...]
    fetches: tuple[Variable, ...]


class V2Predictor(RemotePredictor):
    """A model of a KServe v2 service, with the feeds and fetches of its metadata.

    The metadata is read once: at start-up, or with the first request that reaches a server. BYTES outputs are
    object arrays of `bytes`.
    """

    merges = True

    def __init__(self, conf: RemoteConf, model_name: str, fetch_list: Sequence[str]) -> None:
        self._op = conf.op
        self._model_name = model_name
        self._fetch_list = tuple(fetch_list)
        self._endpoints = Endpoints(conf, "KServe v2 gRPC service")
        self._loaded_signature: _Signature | None = None
        try:
            self._load_signature(time.monotonic() + START_PATIENCE_S)
        except (RemoteUnreachable, DeadlineExceeded, Overloaded) as exc:
            log.warning("%s; the Op starts, and is asked again with each request", exc.message)
        except ServingError as exc:
            raise ConfigError(
                f"op.{conf.op}: the remote model {model_name!r} can't be used: {exc.message}; check "
                f"op.{conf.op}.model_name and op.{conf.op}.server_endpoints"
            ) from exc

    @property
    def feeds(self) -> tuple[Variable, ...]:
        return self._load_signature().feeds

    @property
    def fetches(self) -> tuple[Variable, ...]:
        return self._load_signature().fetches

    def run(self, feeds: Mapping[str, Any], *, deadline: float = math.inf) -> dict[str, Any]:
        signature = self._load_signature(deadline)
        request = self._build_request(signature, feeds)
        data, address = self._endpoints.call(f"{SERVICE}/ModelInfer", request, deadline)
        try:
            return _arrays(ModelInferResponse.FromString(data), signature.fetches)
        except (ValueError, DecodeError) as exc:
            raise ModelFailed(f"{address} answered with what can't be read: {exc}") from exc

    def close(self) -> None:
        self._endpoints.close()

    def _load_signature(self, deadline: float = math.inf) -> _Signature:
        if self._loaded_signature is None:
            message = ModelMetadataRequest(name=self._model_name)
            data, address = self._endpoints.call(f"{SERVICE}/ModelMetadata", message, deadline)
            try:
                metadata = ModelMetadataResponse.FromString(data)
                feeds, fetches = _variables(metadata.inputs), _variables(metadata.outputs)
            except (ValueError, DecodeError) as exc:
                raise ModelFailed(f"{address} describes what can't be served: {exc}") from exc
            self._loaded_signature = _Signature(feeds, select_fetches(fetches, self._fetch_list))
        return self._loaded_signature

    def _build_request(self, signature: _Signature, feeds: Mapping[str, Any]) -> ModelInferRequest:
        """Build a request from feeds. Raises InvalidInput for a dtype or shape other than the server's."""
        request = ModelInferRequest(model_name=self._model_name)
        for fetch in signature.fetches:
            request.outputs.add(name=fetch.name)
        checked = check_promised(signature.feeds, _texts_as_objects(signature.feeds, feeds))
        for variable in signature.feeds:
            array = checked[variable.alias]
            request.inputs.add(
                name=variable.name, datatype=BY_NAME[variable.dtype].datatype, shape=array.shape
            )
            try:
                request.raw_input_contents.append(to_raw(array))
            except ValueError as exc:
                raise InvalidInput(f"feed {variable.alias!r} {exc}") from exc
        return request


def _variables(tensors: Iterable[ModelMetadataResponse.TensorMetadata]) -> tuple[Variable, ...]:
    variables = []
    for tensor in tensors:
        if tensor.datatype not in BY_DATATYPE:
            raise ValueError(f"{tensor.name!r} has datatype {tensor.datatype!r}")
        dtype = BY_DATATYPE[tensor.datatype].name
        variables.append(Variable(tensor.name, tensor.name, dtype, tuple(tensor.shape)))
    return tuple(variables)


def _texts_as_objects(variables: Sequence[Variable], feeds: Mapping[str, Any]) -> dict[str, Any]:
    """Convert NumPy's fixed-width text arrays to arrays of objects, for BYTES feeds."""
    converted = dict(feeds)
    for variable in variables:
        array = feeds.get(variable.alias)
        if variable.dtype == "string" and isinstance(array, np.ndarray) and array.dtype.kind in "US":
            converted[variable.alias] = array.astype(object)
    return converted


def _arrays(response: ModelInferResponse, fetches: Sequence[Variable]) -> dict[str, Array]:
    """Decode the fetches. Raises ValueError for a missing fetch, and for contents that don't fit a shape."""
    raw = response.raw_output_contents
    if raw and len(raw) != len(response.outputs):
        raise ValueError(f"{len(raw)} raw_output_contents for {len(response.outputs)} outputs")
    arrays = {}
    for number, tensor in enumerate(response.outputs):
        try:
            if raw:
                arrays[tensor.name] = from_raw(raw[number], tensor.datatype, tensor.shape)
            else:
                arrays[tensor.name] = from_contents(tensor.contents, tensor.datatype, tensor.shape)
        except ValueError as exc:
            raise ValueError(f"output {tensor.name!r}: {exc}") from None
    for fetch in fetches:
        if fetch.name not in arrays:
            raise ValueError(f"there is no output {fetch.name!r}, only {', '.join(arrays) or 'none'}")
    return {fetch.alias: arrays[fetch.name] for fetch in fetches}
