"""Enumerations with which the hooks of Paddle Serving's scripts compare; there are no channels here."""

from __future__ import annotations

import enum

from paddle_serving_server.pipeline.error_catch import CustomExceptionCode, ProductErrCode
from pipeline.paddle_serving.channel_data import ChannelData

__all__ = ["ChannelData", "ChannelDataEcode", "ChannelDataErrcode", "ChannelDataType", "ProductErrCode"]


class ChannelDataType(enum.Enum):
    """The kind of the data that a hook of a service script gets or returns."""

    DICT = 0
    CHANNEL_NPDATA = 1
    ERROR = 2


ChannelDataErrcode = CustomExceptionCode  # up to 0.6 these numbers were 0 to 9; on the wire they are 0.9's
ChannelDataEcode = ChannelDataErrcode
