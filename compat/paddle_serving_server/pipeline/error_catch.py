"""The error numbers of Paddle Serving 0.9 and the exception with which an app gives one of them."""

from __future__ import annotations

import enum

from pipeline.errors import ServingError

_STATUS = {3002: (404, "NOT_FOUND"), 5000: (400, "INVALID_ARGUMENT"), 6000: (504, "DEADLINE_EXCEEDED")}
_PRODUCT_ERRORS = range(50, 100)


class CustomExceptionCode(enum.Enum):
    """50 to 99 belong to the app; the others are the service's own."""

    OK = 0
    PRODUCT_ERROR = 50
    NOT_IMPLEMENTED = 3000
    CLOSED_ERROR = 3001
    NO_SERVICE = 3002
    INIT_ERROR = 3003
    CONF_ERROR = 4000
    INPUT_PARAMS_ERROR = 5000
    TIMEOUT = 6000
    TYPE_ERROR = 7000
    RPC_PACKAGE_ERROR = 8000
    CLIENT_ERROR = 9000
    UNKNOW = 10000


class ProductErrCode(enum.Enum):
    """Base of an app's own enumeration of error numbers."""


class CustomException(ServingError):
    """Refuses the request with the code's number and the message.

    exceptionCode: an enumeration member, or its number. isSendToUser: taken, and without effect: the original
    ended the whole service where it was False, and here the request alone is refused.
    """

    def __init__(self, exceptionCode: enum.Enum | int, errorMsg: str, isSendToUser: bool = False) -> None:
        super().__init__(errorMsg)
        number = exceptionCode.value if isinstance(exceptionCode, enum.Enum) else exceptionCode
        self.err_no = int(number)
        product = (400, "INVALID_ARGUMENT") if self.err_no in _PRODUCT_ERRORS else (500, "INTERNAL")
        self.http_status, self.grpc_code = _STATUS.get(self.err_no, product)
        self.error_info = (
            f"\n\texception_code: {self.err_no}\n\texception_type: {getattr(exceptionCode, 'name', '')}"
            f"\n\terror_msg: {errorMsg}\n\tis_send_to_user: {isSendToUser}"
        )

    def __str__(self) -> str:
        return self.error_info
