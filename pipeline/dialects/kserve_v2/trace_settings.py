"""Trace and log settings of KServe v2: kept, echoed, and without effect; `logging` of config.yml has one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pipeline.dialects.kserve import json_fields
from pipeline.dialects.kserve.refusals import KServeRefusal

_NUMBER = re.compile(r"\s*([+-]?\d{1,20})")
_INT32_MAX, _UINT32_MAX = (1 << 31) - 1, (1 << 32) - 1
_RANGES = {  # of the trace settings that are numbers
    "trace_rate": (0, _UINT32_MAX),
    "trace_count": (-1, _INT32_MAX),
    "log_frequency": (0, _UINT32_MAX),
}
_LEVELS = ("OFF", "TIMESTAMPS", "TENSORS")
LOG_FORMATS = ("default", "ISO8601")

TraceValue = str | list[str]


class TraceSettings:
    """What is traced, of all models and of each: nothing, for there is no file to trace to."""

    def __init__(self) -> None:
        self._of_all: dict[str, TraceValue] = {}
        self._of_model: dict[str, dict[str, TraceValue]] = {}

    def told(self, model: str = "") -> dict[str, TraceValue]:
        """The settings as Triton's HTTP writes them, numbers as texts; a model's before those of all."""
        start: dict[str, TraceValue] = {
            "trace_level": ["OFF"],
            "trace_rate": "1000",
            "trace_count": "-1",
            "log_frequency": "0",
            "trace_file": "",
            "trace_mode": "triton",
        }
        return {**start, **self._of_all, **self._of_model.get(model, {})}

    def update(self, given: Mapping[str, list[str] | None], model: str = "") -> None:
        """Change settings; None takes one back. model: one that there is, or empty for all.

        Raises KServeRefusal, and then nothing is changed; a setting that Triton does not know is passed over.
        """
        if "trace_file" in given:
            raise KServeRefusal(
                "trace file location can not be updated through network protocol", "UNIMPLEMENTED"
            )
        levels = given.get("trace_level")
        if levels is not None:
            _check_levels(levels)
        values: dict[str, TraceValue] = {}
        for name in _RANGES:
            given_texts = given.get(name)
            if given_texts is not None:
                values[name] = _number(name, given_texts)
        settings = dict(self._of_model.get(model, {}) if model else self._of_all)
        settings.update(values)
        for name in _RANGES:
            if name in given and given[name] is None:
                settings.pop(name, None)
        if model:
            self._of_model[model] = settings
        else:
            self._of_all = settings


def _check_levels(levels: list[str]) -> None:
    if "OFF" in levels and len(levels) > 1:
        raise KServeRefusal("Expect only one trace level 'OFF' is specified")
    if any(level in _LEVELS[1:] for level in levels):
        raise KServeRefusal("Attempting to set invalid trace setting :trace file name is not given")


def _number(name: str, texts: list[str]) -> str:
    if len(texts) > 1:
        raise KServeRefusal(f"expect only 1 value for '{name}'")
    text = texts[0]
    number = _NUMBER.match(text)
    if number is None:
        raise KServeRefusal(f"Unable to parse '{name}', got: {text[:100]}")
    least, most = _RANGES[name]
    if not least <= int(number[1]) <= most:
        raise KServeRefusal(
            f"Unable to parse '{name}', value is out of range [ {least}, {most} ], got: {text[:100]}"
        )
    return str(int(number[1]))


class LogSettings:
    """What a Triton would log with: nothing here logs by these settings."""

    def __init__(self) -> None:
        self._settings: dict[str, bool | int | str] = {
            "log_file": "",
            "log_info": True,
            "log_warning": True,
            "log_error": True,
            "log_verbose_level": 0,
            "log_format": "default",
        }

    def told(self) -> dict[str, bool | int | str]:
        return dict(self._settings)

    def kinds(self) -> dict[str, type]:
        """The type of each setting's value."""
        return {name: type(value) for name, value in self._settings.items()}

    def update(self, given: Mapping[str, bool | int | str]) -> None:
        """Change settings to values of the right types. Raises KServeRefusal, and then nothing is changed."""
        if "log_file" in given:
            raise KServeRefusal(
                "log file location can not be updated through network protocol", "UNIMPLEMENTED"
            )
        form = given.get("log_format", "default")
        if form not in LOG_FORMATS:
            raise KServeRefusal(f"invalid argument for --log_format, got: {str(form)[:100]}", "UNAVAILABLE")
        level = given.get("log_verbose_level", 0)
        if not 0 <= int(level) <= _INT32_MAX:
            raise KServeRefusal(f"log_verbose_level is {level}, and {_INT32_MAX} at most")
        self._settings.update({name: value for name, value in given.items() if name in self._settings})


def trace_settings_in(document: Any) -> dict[str, list[str] | None]:
    """The settings in a JSON request, for `TraceSettings.update`. Raises KServeRefusal for other types."""
    if not isinstance(document, dict):
        raise json_fields.unparsed("", "attempt to access JSON non-object as object")
    given: dict[str, list[str] | None] = {}
    for name, value in document.items():
        if value is None:
            given[name] = None
        elif name == "trace_level":
            given[name] = [json_fields.as_text(level) for level in json_fields.array(document, name)]
        elif name in _RANGES:
            given[name] = [json_fields.as_text(value)]
        else:
            given[name] = []
    return given


def log_settings_in(document: Any, kinds: Mapping[str, type]) -> dict[str, bool | int | str]:
    """The settings in a JSON request, for `LogSettings.update`. Raises KServeRefusal for other types."""
    if not isinstance(document, dict):
        raise json_fields.unparsed("", "attempt to access JSON non-object as object")
    given: dict[str, bool | int | str] = {}
    for name, kind in kinds.items():
        value = document.get(name)
        if value is None:
            continue
        if kind is bool:
            given[name] = json_fields.boolean(value, "")
        elif kind is int:
            given[name] = json_fields.unsigned(value, "")
        else:
            given[name] = json_fields.as_text(value)
    return given
