"""Paddle Serving's server names for Paddlewheel's classes."""

from typing import Any

from paddle_serving_server.ours import claim, refuse_originals

refuse_originals()
claim("pipeline", "client")

CPP_SERVER = ("GrpcServer", "MultiLangServer", "OpGraphMaker", "OpMaker", "OpSeqMaker", "Server")


def __getattr__(name: str) -> Any:
    if name in CPP_SERVER:
        raise ImportError(
            f"paddle_serving_server.{name} builds Paddle Serving's C++ server, which is not part of "
            "Paddlewheel; serve the model with WebService and Op of paddle_serving_server.web_service"
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
