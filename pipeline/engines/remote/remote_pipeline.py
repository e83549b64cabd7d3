"""Calls another Pipeline service (`client_type: pipeline_grpc`), with its key/value messages."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from client.protos.pipeline_service_pb2 import Request, Response, Tensor
from pipeline.config.config_file import Limits
from pipeline.engines.remote.remote_predictor import Endpoints, RemoteConf, RemotePredictor
from pipeline.errors import BadPackage, InvalidInput, ModelFailed, RemoteRefused, TooLarge
from pipeline.models.serving_model import Variable
from pipeline.wire.paddle_tensors import STRING, add_tensors, to_message
from pipeline.wire.value_texts import format_value

METHOD = "/baidu.paddle_serving.pipeline_serving.PipelineService/inference"


class PipelinePredictor(RemotePredictor):
    """A remote Pipeline service. Hooks get Paddle Serving's form: `{key: [text]}`, and arrays for tensors.

    Feeds are sent in PipelineClient's form: `str` unchanged and arrays as their repr, or all as tensors after
    `set_pack_tensor_format(True)`. `fetch_list` selects keys of the answer.
    """

    merges = False
    feeds: tuple[Variable, ...] = ()  # the service does not declare them
    fetches: tuple[Variable, ...] = ()

    def __init__(
        self, conf: RemoteConf, fetch_list: Sequence[str], packs_tensors: Callable[[], bool]
    ) -> None:
        self._packs_tensors = packs_tensors
        self._fetch_list = tuple(fetch_list)
        self._endpoints = Endpoints(conf, "Pipeline service")

    def run(self, feeds: Mapping[str, Any], *, deadline: float = math.inf) -> dict[str, Any]:
        request = _build_request(feeds, as_tensors=self._packs_tensors())
        data, address = self._endpoints.call(METHOD, request, deadline)
        try:
            response = Response.FromString(data)
        except DecodeError as exc:
            raise ModelFailed(f"{address} answered with no Pipeline message") from exc
        if response.err_no != 0:
            raise RemoteRefused(response.err_msg, response.err_no)
        return self._select(_unpack_outputs(response, address), address)

    def close(self) -> None:
        self._endpoints.close()

    def _select(self, outputs: dict[str, Any], address: str) -> dict[str, Any]:
        for name in self._fetch_list:
            if name not in outputs:
                keys = ", ".join(outputs) or "nothing"
                raise ModelFailed(f"fetch_list: the answer of {address} has no {name!r}, only {keys}")
        return {name: outputs[name] for name in self._fetch_list} if self._fetch_list else outputs


def _build_request(feeds: Mapping[str, Any], *, as_tensors: bool) -> Request:
    """Build a Request from feeds; "logid" and "clientip" become fields. Raises InvalidInput."""
    feeds = dict(feeds)
    name: object = "logid"
    try:
        request = Request(logid=int(feeds.pop("logid", 0)), clientip=str(feeds.pop("clientip", "")))
        for name, value in feeds.items():
            if as_tensors:
                request.tensors.append(_tensor(name, value))
            else:
                request.key.append(name)
                request.value.append(value if isinstance(value, str) else format_value(_array(name, value)))
    except (TypeError, ValueError) as exc:  # a name that is no str, an unpaired surrogate, an object array
        raise InvalidInput(f"feed {name!r} can't be sent: {exc}") from exc
    return request


def _tensor(name: str, value: Any) -> Tensor:
    texts = [value] if isinstance(value, str) else value
    if isinstance(texts, list) and texts and all(isinstance(text, str) for text in texts):
        return Tensor(name=name, elem_type=STRING, str_data=texts)
    return to_message(name, _array(name, value))


def _array(name: str, value: Any) -> np.ndarray[Any, Any]:
    if isinstance(value, np.ndarray | list):
        return np.asarray(value)
    raise InvalidInput(f"feed {name!r} is of type {type(value).__name__}, expected str, ndarray or list")


def _unpack_outputs(response: Response, address: str) -> dict[str, Any]:
    # Paddle Serving put each text into a list, and hooks read `fetch_dict["key"][0]`.
    outputs: dict[str, Any] = {key: [value] for key, value in zip(response.key, response.value, strict=False)}
    try:
        add_tensors(outputs, response.tensors, Limits())
    except (BadPackage, TooLarge) as exc:
        raise ModelFailed(f"{address} answered with a tensor that can't be read: {exc.message}") from exc
    return outputs
