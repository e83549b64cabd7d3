"""FRONT PROCESS: Triton's trace settings, as clients read and change them over HTTP and gRPC."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pipeline.config.trace_section import LEVELS, MAX_COUNT, MAX_RATE
from pipeline.dialects.kserve import json_fields
from pipeline.dialects.kserve.refusals import KServeRefusal
from pipeline.front.tracing.traces import Traces

TraceValue = str | list[str]
LEVEL = "trace_level"
_FIELDS = {  # fields of TraceValues
    LEVEL: "levels",
    "trace_rate": "rate",
    "trace_count": "count",
    "log_frequency": "log_frequency",
}
_RANGES = {  # of numeric trace settings
    "trace_rate": (0, MAX_RATE),
    "trace_count": (-1, MAX_COUNT),
    "log_frequency": (0, MAX_RATE),
}
_OFF = "OFF"
_NUMBER = re.compile(r"\s*([+-]?\d{1,20})")


class TraceSettings:
    """Triton's trace settings: of all models together, and of single models."""

    def __init__(self, traces: Traces) -> None:
        self._traces = traces

    def get_settings(self, model: str = "") -> dict[str, TraceValue]:
        """Return the settings of a model; for an empty name, the settings of all models. Numbers are texts.

        Settings of a model override the settings of all models.
        """
        values, config = self._traces.get_values(model), self._traces.config
        settings: dict[str, TraceValue] = {
            LEVEL: list(values.levels) or [_OFF],
            "trace_rate": str(values.rate),
            "trace_count": str(self._traces.get_remaining(model)),
        }
        mode: dict[str, TraceValue] = {"trace_mode": config.mode}
        if config.mode == "triton":
            frequency = str(values.log_frequency)
            return {**settings, "log_frequency": frequency, "trace_file": config.trace_file, **mode}
        resource: dict[str, TraceValue] = {"resource": config.resource} if config.resource else {}
        return {
            **settings,
            **mode,
            **resource,
            "url": config.url,
            "bsp_max_queue_size": str(config.bsp_max_queue_size),
            "bsp_schedule_delay": str(config.bsp_schedule_delay),
            "bsp_max_export_batch_size": str(config.bsp_max_export_batch_size),
        }

    def update(self, settings: Mapping[str, list[str] | None], model: str = "") -> None:
        """Change the trace settings of a model; for an empty name, of all models. None resets a setting.

        Unknown settings are ignored. For an invalid value, raises KServeRefusal and changes nothing.
        """
        if "trace_file" in settings:
            raise KServeRefusal(
                "trace file location can not be updated through network protocol", "UNIMPLEMENTED"
            )
        changes: dict[str, Any] = {}
        for name, texts in settings.items():
            if name not in _FIELDS:
                continue
            if texts is None:
                changes[_FIELDS[name]] = None
            else:
                parsed = self._parse_levels(texts) if name == LEVEL else _parse_trace_number(name, texts)
                changes[_FIELDS[name]] = parsed
        self._traces.update(changes, model)

    def _parse_levels(self, levels: list[str]) -> tuple[str, ...]:
        if _OFF in levels and len(levels) > 1:
            raise KServeRefusal("Expect only one trace level 'OFF' is specified")
        chosen = tuple(level for level in LEVELS if level in levels)
        if chosen and not self._traces.is_possible:
            raise KServeRefusal("Attempting to set invalid trace setting :trace file name is not given")
        return chosen


def _parse_trace_number(name: str, texts: list[str]) -> int:
    if len(texts) > 1:
        raise KServeRefusal(f"expect only 1 value for '{name}'")
    text = texts[0]
    number = _NUMBER.match(text)
    if number is None:
        raise KServeRefusal(f"Unable to parse '{name}', got: {text[:100]}")
    minimum, maximum = _RANGES[name]
    if not minimum <= int(number[1]) <= maximum:
        raise KServeRefusal(
            f"Unable to parse '{name}', value is out of range [ {minimum}, {maximum} ], got: {text[:100]}"
        )
    return int(number[1])


def parse_trace_settings(document: Any) -> dict[str, list[str] | None]:
    """Convert a JSON document with trace settings to the argument of `TraceSettings.update`.

    Raises KServeRefusal for values of other types.
    """
    if not isinstance(document, dict):
        raise json_fields.parse_error("", "attempt to access JSON non-object as object")
    settings: dict[str, list[str] | None] = {}
    for name, value in document.items():
        if value is None:
            settings[name] = None
        elif name == LEVEL:
            settings[name] = [
                json_fields.check_text(level) for level in json_fields.get_array(document, name)
            ]
        elif name in _FIELDS and name != LEVEL:
            settings[name] = [json_fields.check_text(value)]
        else:
            settings[name] = []
    return settings
