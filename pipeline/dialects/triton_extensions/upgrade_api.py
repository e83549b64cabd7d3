"""FRONT PROCESS: upgrades of models that are gated by answers, as clients begin, watch and cancel them."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from pipeline.dialects.kserve import json_fields
from pipeline.dialects.kserve.refusals import KServeRefusal
from pipeline.front.upgrades.answers import Tolerances
from pipeline.front.upgrades.shift import CanarySettings
from pipeline.front.upgrades.upgrade import UpgradeSettings

MAX_REQUESTS = 10_000_000
MAX_MINUTES = 7 * 24 * 60.0
_LIMITS = {  # of numbers in a request, lowest and highest
    "requests": (0, MAX_REQUESTS),
    "minutes": (0, MAX_MINUTES),
    "tolerance": (0, 0.99),
    "score_tolerance": (0, 1),
    "tensor_tolerance": (0, 1e6),
    "timeout_s": (0.1, 3600),
    "step_requests": (1, MAX_REQUESTS),
    "error_limit": (0, 0.99),
    "latency_limit": (1, 1000),
}
_WHOLE = ("requests", "step_requests")
_MEMBERS = ("version", "share_cpu", "canary", *_LIMITS)
MAX_STEPS = 20
MIN_SHARE = 0.01  # percent


class UpgradeRequest(NamedTuple):
    """A client's request to upgrade a model: the version on disk, and the settings of the comparison."""

    version: str
    settings: UpgradeSettings


def parse_upgrade(body: bytes) -> UpgradeRequest:
    """Parse the JSON body of a request for an upgrade. Raises KServeRefusal (HTTP 400) with the member."""
    document = json_fields.parse_json(body) if body.strip() else {}
    if not isinstance(document, dict):
        raise KServeRefusal('the body of an upgrade is a JSON object, such as {"version": "2"}')
    unknown = [name for name in document if name not in _MEMBERS]
    if unknown:
        raise KServeRefusal(f"an upgrade has no member {unknown[0][:100]!r}, only {', '.join(_MEMBERS)}")
    version = document.get("version")
    if isinstance(version, bool) or not isinstance(version, str | int):
        raise KServeRefusal('version is missing or no number: write the version on disk, such as "2"')
    numbers = {name: _check_number(name, document[name]) for name in _LIMITS if name in document}
    minutes = numbers.get("minutes", 0.0)
    requests = int(numbers.get("requests", 0 if minutes else UpgradeSettings.requests))
    if not requests and not minutes:
        raise KServeRefusal("requests and minutes are both 0: set either, such as requests: 2000")
    share_cpu = document.get("share_cpu", False)
    if not isinstance(share_cpu, bool):
        raise KServeRefusal(f"share_cpu is {str(share_cpu)[:100]!r}: write true or false")
    defaults = Tolerances()
    tolerances = Tolerances(
        numbers.get("score_tolerance", defaults.scores), numbers.get("tensor_tolerance", defaults.tensors)
    )
    return UpgradeRequest(
        str(version),
        UpgradeSettings(
            requests,
            minutes,
            numbers.get("tolerance", UpgradeSettings.tolerance),
            tolerances,
            numbers.get("timeout_s", UpgradeSettings.timeout_s),
            share_cpu,
            CanarySettings(
                _parse_shares(document.get("canary", [])),
                int(numbers.get("step_requests", CanarySettings.requests)),
                numbers.get("error_limit", CanarySettings.error_limit),
                numbers.get("latency_limit", CanarySettings.latency_limit),
            ),
        ),
    )


def _parse_shares(value: Any) -> tuple[float, ...]:
    """Return the shares of a canary's steps, in percent. Raises KServeRefusal."""
    shares = value if isinstance(value, list) else [None]
    is_valid = len(shares) <= MAX_STEPS and all(
        isinstance(share, int | float) and not isinstance(share, bool) and MIN_SHARE <= share <= 100
        for share in shares
    )
    if not is_valid or shares != sorted(set(shares)):
        raise KServeRefusal(
            f"canary is {str(value)[:100]!r}: write at most {MAX_STEPS} rising shares in percent, from "
            f"{MIN_SHARE:g} to 100, such as [1, 10, 50, 100]"
        )
    return tuple(map(float, shares))


def _check_number(name: str, value: Any) -> float:
    """Return `value` if it is a number within the limits of `name`. Otherwise raise KServeRefusal."""
    lowest, highest = _LIMITS[name]
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not is_number or not lowest <= value <= highest:
        raise KServeRefusal(f"{name} is {str(value)[:100]!r}: write a number from {lowest:g} to {highest:g}")
    if name in _WHOLE and value != int(value):
        raise KServeRefusal(f"{name} is {value!r}: write a whole number")
    return float(value)
