"""The clients of Paddle Serving's C++ server, whose constructors raise an error with the alternative."""

from __future__ import annotations

from typing import Any, NoReturn

from pipeline.errors import ServingError

__all__ = ["Client", "HttpClient"]


class NoCppServer(ServingError):
    """Raised for features of Paddle Serving's C++ server, which this project does not have (err_no 3000)."""

    err_no = 3000


class Client:
    """Stand-in for the brpc client of Paddle Serving's C++ server; the constructor raises NoCppServer."""

    def __init__(self, *_: Any, **__: Any) -> NoReturn:
        raise NoCppServer(
            "paddle_serving_client.Client speaks brpc to Paddle Serving's C++ server, which is not part of "
            "Paddlewheel; ask a Pipeline service with paddle_serving_server.pipeline.PipelineClient, or run "
            "the model in this process with paddle_serving_app.local_predict.LocalPredictor"
        )


class HttpClient:
    """Stand-in for the HTTP client of Paddle Serving's C++ server; the constructor raises NoCppServer."""

    def __init__(self, *_: Any, **__: Any) -> NoReturn:
        raise NoCppServer(
            "paddle_serving_client.HttpClient asks /GeneralModelService of Paddle Serving's C++ server, "
            "which is not part of Paddlewheel; ask a Pipeline service with POST /{name}/{method}, or with "
            "paddle_serving_server.pipeline.PipelineClient"
        )
