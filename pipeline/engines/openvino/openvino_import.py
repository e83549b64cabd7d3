"""Imports OpenVINO without its telemetry."""

from __future__ import annotations

import sys
from typing import Any, cast

# With this package, OpenVINO reports its import over the network and stores an id in the home folder, without
# consent. OpenVINO works without the package.
cast(dict[str, Any], sys.modules).setdefault("openvino_telemetry", None)

import openvino  # noqa: E402

__all__ = ["openvino"]
