"""Paddle Serving's server names for Paddlewheel's classes; with them come the names of NumPy 1."""

from typing import Any

from paddle_serving_server.ours import claim, refuse_originals

refuse_originals()
claim("pipeline", "client")

from pipeline.paddle_serving.numpy_1 import install_numpy_1_names  # noqa: E402 - `claim` has found the package

install_numpy_1_names()  # a script of that time may use them before it serves

CPP_SERVER = ("GrpcServer", "MultiLangServer", "OpGraphMaker", "OpMaker", "OpSeqMaker", "Server")


def __getattr__(name: str) -> Any:
    if name in CPP_SERVER:
        raise ImportError(
            f"paddle_serving_server.{name} builds Paddle Serving's C++ server, which is not part of "
            "Paddlewheel; serve the model with WebService and Op of paddle_serving_server.web_service"
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
