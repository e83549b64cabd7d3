"""Imports OpenVINO without its telemetry."""

from __future__ import annotations

import sys
from typing import Any, cast

# With this package OpenVINO tells its makers over the network that it was imported, and keeps an id in the
# home folder, without asking. Where it can't be imported, OpenVINO does without.
cast(dict[str, Any], sys.modules).setdefault("openvino_telemetry", None)

import openvino  # noqa: E402

__all__ = ["openvino"]
