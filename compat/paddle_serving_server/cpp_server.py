"""Import errors for names of Paddle Serving's C++ server, which is not part of this project."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

SERVER_NAMES = ("GrpcServer", "MultiLangServer", "OpGraphMaker", "OpMaker", "OpSeqMaker", "Server")


def refuse_names(module: str, names: tuple[str, ...], reason: str) -> Callable[[str], NoReturn]:
    """Return a module's `__getattr__` that raises ImportError, with a reason, for the given names."""

    def refuse(name: str) -> NoReturn:
        if name in names:
            raise ImportError(f"{module}.{name} {reason}")
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    return refuse


def refuse_server_names(module: str) -> Callable[[str], NoReturn]:
    """Return a module's `__getattr__` that raises ImportError for the C++ server's builder classes."""
    return refuse_names(
        module,
        SERVER_NAMES,
        "builds Paddle Serving's C++ server, which is not part of Paddlewheel; serve the model with "
        "WebService and Op of paddle_serving_server.web_service",
    )
