"""ChannelData: what one Op passes to the next, as the hooks of Paddle Serving see it."""

from __future__ import annotations

from typing import Any

import numpy as np

_DICT, _ARRAYS, _ERROR = 0, 1, 2
PRODUCT_ERROR = 50  # an app's own number is beside it, whatever it is
SERVICE_ERR_NOS = frozenset((3000, 3001, 3002, 3003, 3004, *range(4000, 11000, 1000)))
_TYPE_ERROR = 7000


def _is_array(value: Any) -> bool:
    """Whether Paddle Serving takes it for an array; a list goes by its first element, as where printed."""
    return isinstance(value, np.ndarray) or (
        isinstance(value, list) and bool(value) and isinstance(value[0], str)
    )


class ChannelData:
    """An Op's output, or the refusal that takes its place.

    id: the request's number, the same in every Op. log_id: the client's own. error_code: 0, or the err_no of
    the refusal; error_info: its message. datatype: 0 a dict, 1 a dict of ndarrays and lists of str alone,
    2 a refusal. prod_error_code, prod_error_info: of a refusal by the app itself, whose error_code is 50 and
    whose error_info is empty.
    """

    def __init__(
        self, output: Any, *, data_id: int = 0, log_id: int = 0, error_code: int = 0, error_info: str = ""
    ) -> None:
        self._output = output
        self.id = data_id
        self.log_id = log_id
        self.error_code = error_code
        self.error_info = error_info
        self.prod_error_code: int | None = None
        self.prod_error_info: str | None = None

    @classmethod
    def of_refusal(cls, err_no: int, message: str, *, data_id: int, log_id: int) -> ChannelData:
        """What takes an output's place: the service's own number and text, or the app's."""
        refusal = cls(None, data_id=data_id, log_id=log_id, error_code=err_no, error_info=message)
        if err_no not in SERVICE_ERR_NOS:
            refusal.error_code, refusal.error_info = PRODUCT_ERROR, ""
            refusal.prod_error_code, refusal.prod_error_info = err_no, message
        return refusal

    @property
    def refusal(self) -> tuple[int, str] | None:
        """The number and the text of the answer that refuses; None for an output."""
        if not self.error_code:
            return None
        if self.prod_error_code is None:
            return self.error_code, self.error_info
        return self.prod_error_code, self.prod_error_info or ""

    @property
    def datatype(self) -> int:
        if self.error_code:
            return _ERROR
        arrays = isinstance(self._output, dict) and all(map(_is_array, self._output.values()))
        return _ARRAYS if arrays else _DICT

    @property
    def npdata(self) -> Any:
        """The output of datatype 1, else None."""
        return self._output if self.datatype == _ARRAYS else None

    @property
    def dictdata(self) -> Any:
        """The output of datatype 0, else None."""
        return self._output if self.datatype == _DICT else None

    def parse(self) -> Any:
        """The output; None for a refusal."""
        return self._output

    @staticmethod
    def check_dictdata(dictdata: Any) -> tuple[int, str | None]:
        """(0, None) for a dict or a list of dicts, else 7000 and why."""
        for one in dictdata if isinstance(dictdata, list) else (dictdata,):
            if not isinstance(one, dict):
                told = f"the type of data must be dict, but get {type(one)}."
                return _TYPE_ERROR, f"Failed to check data: {told}"
        return 0, None

    @staticmethod
    def check_npdata(npdata: Any) -> tuple[int, str | None]:
        """(0, None) for a dict of ndarrays (or lists of str) or a list of them, else 7000 and why."""
        code, info = ChannelData.check_dictdata(npdata)
        if code:
            return code, info
        for one in npdata if isinstance(npdata, list) else (npdata,):
            for value in one.values():
                if not _is_array(value):
                    told = f"the value of data must be np.ndarray, but get {type(value)}."
                    return _TYPE_ERROR, f"Failed to check data: {told}"
        return 0, None

    @staticmethod
    def check_batch_npdata(batch: list[Any]) -> tuple[int, str | None]:
        """`check_npdata` of each element of a list; what it tells of the first flaw."""
        return next((found for one in batch if (found := ChannelData.check_npdata(one))[0]), (0, None))
