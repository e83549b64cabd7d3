"""Imports of the packages for images (OpenCV, pyclipper, shapely), when a reader first needs one."""

from __future__ import annotations

import importlib
import logging
from functools import cache
from typing import Any

log = logging.getLogger(__name__)

INSTALL = "python3 -m pip install './compat[vision]'"


@cache
def opencv() -> Any:
    """Return the module cv2, with a warning for version 5. Raise ImportError that names what to install."""
    cv2 = _needed("cv2", "OpenCV")
    if int(cv2.__version__.partition(".")[0]) > 4:
        log.warning(
            "OpenCV %s is installed; its crops differ by some grey levels from those of OpenCV 4, which "
            "Paddle Serving's apps had, and so may answers: %s",
            cv2.__version__,
            INSTALL,
        )
    return cv2


def clipper() -> Any:
    """Return the module pyclipper. Raise ImportError that names what to install."""
    return _needed("pyclipper", "pyclipper")


def polygons() -> Any:
    """Return the module shapely.geometry. Raise ImportError that names what to install."""
    return _needed("shapely.geometry", "shapely")


def _needed(module: str, name: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as exc:
        raise ImportError(f"this reader needs {name}; install what images need: {INSTALL}") from exc
