"""Paddle Serving's module `pddet` for its C++ clients; importing a name from it raises an error."""

from __future__ import annotations

from typing import NoReturn


def __getattr__(name: str) -> NoReturn:
    if name.startswith("__"):
        raise AttributeError(name)
    raise ImportError(
        f"paddle_serving_app.reader.pddet.{name} belongs to clients of the C++ server; use "
        "DetectionSequential and RCNNPostprocess of paddle_serving_app.reader"
    )
