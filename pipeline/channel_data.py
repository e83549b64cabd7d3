"""ChannelData: what one Op passes to the next, as the hooks of Paddle Serving see it."""

from __future__ import annotations

from typing import Any

import numpy as np

_DICT, _ARRAYS, _ERROR = 0, 1, 2


class ChannelData:
    """An Op's output, or the refusal that takes its place.

    id: the request's number in this worker. log_id: the client's own. error_code: 0, or the err_no of the
    refusal; error_info: its message. datatype: 0 a dict, 1 a dict of ndarrays alone, 2 a refusal.
    prod_error_code, prod_error_info: the same once more, for hooks that look for an app's own numbers there.
    """

    def __init__(
        self, output: Any, *, data_id: int = 0, log_id: int = 0, error_code: int = 0, error_info: str = ""
    ) -> None:
        self._output = output
        self.id = data_id
        self.log_id = log_id
        self.error_code = error_code
        self.error_info = error_info
        self.prod_error_code = error_code or None
        self.prod_error_info = error_info if error_code else None

    @property
    def datatype(self) -> int:
        if self.error_code:
            return _ERROR
        arrays = isinstance(self._output, dict) and all(
            isinstance(value, np.ndarray) for value in self._output.values()
        )
        return _ARRAYS if arrays and self._output else _DICT

    @property
    def npdata(self) -> Any:
        """The output where it holds ndarrays alone, else None."""
        return self._output if self.datatype == _ARRAYS else None

    @property
    def dictdata(self) -> Any:
        """The output where it holds other things, too, else None."""
        return self._output if self.datatype == _DICT else None

    def parse(self) -> Any:
        """The output; None for a refusal."""
        return self._output
