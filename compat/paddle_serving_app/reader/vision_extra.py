"""The packages of the extra `[vision]`, imported when a reader first needs one."""

from __future__ import annotations

import importlib
from typing import Any


def opencv() -> Any:
    """The module cv2. Raises ImportError that names what to install."""
    return _needed("cv2", "OpenCV")


def clipper() -> Any:
    """The module pyclipper. Raises ImportError that names what to install."""
    return _needed("pyclipper", "pyclipper")


def polygons() -> Any:
    """The module shapely.geometry. Raises ImportError that names what to install."""
    return _needed("shapely.geometry", "shapely")


def _needed(module: str, name: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as exc:
        raise ImportError(
            f"this reader needs {name}; install what images need: python3 -m pip install './compat[vision]'"
        ) from exc
