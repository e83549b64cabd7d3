"""The flags of tracing: `--trace-config`, and the older ones such as `--trace-file`."""

from __future__ import annotations

from typing import Any

from pipeline.config.trace_section import LEVELS, MAX_COUNT, MAX_RATE
from pipeline.errors import ConfigError
from pipeline.launch.serve_options import ServeOptions

_OLDER = {
    "trace_file": "trace_file",
    "rate": "trace_rate",
    "count": "trace_count",
    "log_frequency": "trace_log_frequency",
}
_LEVELS = {  # by the word in any case; min and max are those of older versions
    "off": (),
    "false": (),
    "timestamps": ("TIMESTAMPS",),
    "min": ("TIMESTAMPS",),
    "max": ("TIMESTAMPS",),
    "on": ("TIMESTAMPS",),
    "true": ("TIMESTAMPS",),
    "tensors": ("TENSORS",),
}
_RANGES = {"rate": (0, MAX_RATE), "count": (-1, MAX_COUNT), "log_frequency": (0, MAX_RATE)}
_RANGES |= dict.fromkeys(
    ("bsp_max_queue_size", "bsp_schedule_delay", "bsp_max_export_batch_size"), (1, MAX_COUNT)
)
_MODES = {
    "": ("level", "rate", "count", "mode"),
    "triton": ("file", "log_frequency"),
    "opentelemetry": (
        "url",
        "resource",
        "bsp_max_queue_size",
        "bsp_schedule_delay",
        "bsp_max_export_batch_size",
    ),
}


def build_trace_section(options: ServeOptions) -> dict[str, Any]:
    """Return the section `trace` of the server's configuration from the tracing flags.

    Raises ConfigError for an unknown setting, an invalid value, and for Triton's old and new tracing flags
    together.
    """
    older = {field: value for field, name in _OLDER.items() if (value := getattr(options, name)) is not None}
    if (older or options.trace_level) and options.trace_config:
        raise ConfigError(
            "--trace-config and the older flags --trace-file, --trace-level, --trace-rate, --trace-count and "
            "--trace-log-frequency exclude each other: write all as --trace-config"
        )
    section: dict[str, Any] = {}
    levels: list[str] = []
    for field, value in older.items():
        name = f"--{_OLDER[field].replace('_', '-')}"
        section[field] = str(value) if field == "trace_file" else _parse_number(name, field, str(value))
    levels += options.trace_level
    for text in options.trace_config:
        _add_setting(section, levels, text)
    if levels:
        section["level"] = _merge_levels(levels)
    return section


def _add_setting(section: dict[str, Any], levels: list[str], text: str) -> None:
    """Parse a value of --trace-config, and add it to the section; add a trace level to `levels` instead."""
    flag = f"--trace-config={text}"
    head, _, value = text.partition("=")
    mode, comma, name = head.rpartition(",")
    mode, field = mode.lower() if comma else "", name.lower().replace("-", "_")
    if mode not in _MODES:
        raise ConfigError(f"{flag}: there is no trace mode {mode!r}, only triton and opentelemetry")
    if field not in _MODES[mode]:
        owner = f"the mode {mode}" if mode else "all modes"
        names = ", ".join(_MODES[mode])
        raise ConfigError(f"{flag}: {name!r} is no setting of {owner}, which are {names}")
    if field == "level":
        if value.lower() not in _LEVELS:
            raise ConfigError(f"{flag}: the level is one of OFF, TIMESTAMPS and TENSORS")
        levels.append(value.lower())
    elif field == "mode":
        if value.lower() not in ("triton", "opentelemetry"):
            raise ConfigError(f"{flag}: the mode is triton or opentelemetry")
        section[field] = value.lower()
    elif field == "resource":
        if "=" not in value[1:]:
            raise ConfigError(f"{flag}: write opentelemetry,resource=KEY=VALUE")
        section.setdefault(field, []).append(value)
    elif field == "file":
        section["trace_file"] = value
    elif field in _RANGES:
        section[field] = _parse_number(flag, field, value)
    else:
        section[field] = value


def _merge_levels(words: list[str]) -> list[str]:
    """Return the trace levels that these words of the flags name; empty if a word turns tracing off."""
    if any(not _LEVELS[word] for word in words):
        return []
    named = {level for word in words for level in _LEVELS[word]}
    return [level for level in LEVELS if level in named]


def _parse_number(flag: str, field: str, text: str) -> int:
    minimum, maximum = _RANGES[field]
    try:
        number = int(text)
    except ValueError:
        number = minimum - 1
    if not minimum <= number <= maximum:
        raise ConfigError(f"{flag}: {field} is a whole number from {minimum} to {maximum}")
    return number
