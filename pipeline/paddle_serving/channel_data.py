"""Paddle Serving's ChannelData class for existing user code, and codecs of PipelineService gRPC messages."""

from __future__ import annotations

from typing import Any

import numpy as np

from client.protos.pipeline_service_pb2 import Request, Response, Tensor
from pipeline.api.request_options import Answer, LogId
from pipeline.config.config_file import Limits
from pipeline.wire.paddle_tensors import add_tensors
from pipeline.wire.value_texts import build_message, format_outputs

_DICT, _ARRAYS, _ERROR = 0, 1, 2
PRODUCT_ERROR = 50  # error_code of every app error, whose number is in prod_error_code
SERVICE_ERR_NOS = frozenset((3000, 3001, 3002, 3003, 3004, *range(4000, 11000, 1000)))
_TYPE_ERROR = 7000


def _is_array(value: Any) -> bool:
    """Whether Paddle Serving treats a value as an array: an ndarray, or a list that begins with a str."""
    return isinstance(value, np.ndarray) or (
        isinstance(value, list) and bool(value) and isinstance(value[0], str)
    )


class ChannelData:
    """Paddle Serving's wrapper of one step's (Op's) output for one request, or of an error in its place.

    The attributes and methods have the names of Paddle Serving's class, so existing user code can read them.
    """

    def __init__(
        self, output: Any, *, data_id: int = 0, log_id: LogId = 0, error_code: int = 0, error_info: str = ""
    ) -> None:
        self._output = output
        self.id = data_id  # the request's number, the same in every Op
        self.log_id = log_id  # the client's number
        self.error_code = error_code  # 0, or the err_no of an error
        self.error_info = error_info  # message of an error
        # Of an app's error, whose error_code is 50 and whose error_info is empty.
        self.prod_error_code: int | None = None
        self.prod_error_info: str | None = None

    @classmethod
    def of_refusal(cls, err_no: int, message: str, *, data_id: int, log_id: LogId) -> ChannelData:
        """Build a ChannelData that holds an error instead of an output.

        err_no: a number of the service (`SERVICE_ERR_NOS`) becomes `error_code`. Any other number comes from
        user code: `error_code` is then 50, and number and message go to `prod_error_code` and
        `prod_error_info`.
        """
        refusal = cls(None, data_id=data_id, log_id=log_id, error_code=err_no, error_info=message)
        if err_no not in SERVICE_ERR_NOS:
            refusal.error_code, refusal.error_info = PRODUCT_ERROR, ""
            refusal.prod_error_code, refusal.prod_error_info = err_no, message
        return refusal

    @property
    def refusal(self) -> tuple[int, str] | None:
        """Number (err_no) and message of an error of the service or of user code; None for an output."""
        if not self.error_code:
            return None
        if self.prod_error_code is None:
            return self.error_code, self.error_info
        return self.prod_error_code, self.prod_error_info or ""

    @property
    def datatype(self) -> int:
        """Kind of the content: 0 for a dict, 1 for a dict of ndarrays and lists of str, 2 for an error."""
        if self.error_code:
            return _ERROR
        arrays = isinstance(self._output, dict) and all(map(_is_array, self._output.values()))
        return _ARRAYS if arrays else _DICT

    @property
    def npdata(self) -> Any:
        """The output if it is a dict of ndarrays and lists of str (datatype 1), else None."""
        return self._output if self.datatype == _ARRAYS else None

    @property
    def dictdata(self) -> Any:
        """The output if it is any other dict (datatype 0), else None."""
        return self._output if self.datatype == _DICT else None

    def parse(self) -> Any:
        """Return the step's output, whatever its datatype; None for an error."""
        return self._output

    @staticmethod
    def check_dictdata(dictdata: Any) -> tuple[int, str | None]:
        """Check that an output is a dict or a list of dicts.

        Returns (0, None), else (7000, error message).
        """
        for row in dictdata if isinstance(dictdata, list) else (dictdata,):
            if not isinstance(row, dict):
                reason = f"the type of data must be dict, but get {type(row)}."
                return _TYPE_ERROR, f"Failed to check data: {reason}"
        return 0, None

    @staticmethod
    def check_npdata(npdata: Any) -> tuple[int, str | None]:
        """Check that each value of a dict, or of each dict in a list, is an ndarray or a list of str.

        Returns (0, None), else (7000, error message).
        """
        code, info = ChannelData.check_dictdata(npdata)
        if code:
            return code, info
        for row in npdata if isinstance(npdata, list) else (npdata,):
            for value in row.values():
                if not _is_array(value):
                    reason = f"the value of data must be np.ndarray, but get {type(value)}."
                    return _TYPE_ERROR, f"Failed to check data: {reason}"
        return 0, None

    @staticmethod
    def check_batch_npdata(batch: list[Any]) -> tuple[int, str | None]:
        """Apply `check_npdata` to each element of a list. Returns its first error, else (0, None)."""
        return next((error for row in batch if (error := ChannelData.check_npdata(row))[0]), (0, None))


def unpack_inputs(request: Request) -> dict[str, Any]:
    """Decode the inputs of a PipelineService gRPC request: strings by key, arrays by tensor name.

    Raises BadPackage for a malformed tensor, and TooLarge for one over the size limit.
    """
    inputs: dict[str, Any] = dict(zip(request.key, request.value, strict=False))
    add_tensors(inputs, request.tensors, Limits())
    return inputs


def unpack_outputs(response: Response) -> dict[str, Any]:
    """Decode the outputs of a successful PipelineService response: strings by key, arrays by tensor name.

    Raises BadPackage for a malformed tensor, and TooLarge for one over the size limit.
    """
    outputs: dict[str, Any] = dict(zip(response.key, response.value, strict=False))
    add_tensors(outputs, response.tensors, Limits())
    return outputs


def unpack_tensor(tensor: Tensor) -> tuple[Any, Any]:
    """Decode one protobuf tensor: return its array or str, and its LoD offsets as int32 [2, n] or None.

    LoD (level of detail) marks where each sequence of a ragged tensor begins and ends. Raises BadPackage for
    a malformed tensor, and TooLarge for one over the size limit.
    """
    inputs: dict[str, Any] = {}
    add_tensors(inputs, [tensor], Limits())
    return inputs[tensor.name], inputs.get(f"{tensor.name}.lod")


def build_response(channel_data: ChannelData) -> Response:
    """Build the PipelineService gRPC response of an output (each value as text), or of an error."""
    if channel_data.refusal is not None:
        err_no, message = channel_data.refusal
        return Response(err_no=err_no, err_msg=message)
    output = channel_data.parse()
    if isinstance(output, Answer) and output.key_values is not None:
        output = output.key_values
    return build_message(*format_outputs(output))
