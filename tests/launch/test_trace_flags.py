"""The flags of tracing become the section `trace` of the configuration, or an error that names them."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import pytest

from client.options import parse_options
from pipeline.config.config_file import load_config
from pipeline.errors import ConfigError
from pipeline.launch.serve_options import ServeOptions, add_flags, parse_flags
from pipeline.launch.trace_flags import build_trace_section


def build(*flags: str) -> dict[str, Any]:
    parser = argparse.ArgumentParser()
    add_flags(parser)
    values = parse_flags(parser, ["--model-repository=x", *flags])
    return build_trace_section(parse_options(ServeOptions, values))


def config(*settings: str) -> Sequence[str]:
    return [f"--trace-config={setting}" for setting in settings]


def test_both_kinds_of_flags_say_the_same() -> None:
    section = {
        "trace_file": "a",
        "level": ["TIMESTAMPS", "TENSORS"],
        "rate": 5,
        "count": -1,
        "log_frequency": 7,
    }
    settings = "triton,file=a", "level=tensors", "level=TIMESTAMPS", "rate=5", "count=-1"
    assert build(*config(*settings, "triton,log-frequency=7", "mode=Triton")) == {**section, "mode": "triton"}
    levels = "--trace-level=TENSORS", "--trace-level=MAX"
    numbers = "--trace-rate=5", "--trace-count=-1", "--trace-log-frequency=7"
    assert build("--trace-file=a", *levels, *numbers) == section
    assert build("--trace-file=a", *levels, "--trace-level=OFF")["level"] == []
    assert build() == {}


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (["x=1"], "'x' is no setting"),
        (["triton,url=a"], "'url' is no setting of the mode triton"),
        (["jaeger,url=a"], "there is no trace mode 'jaeger'"),
        (["level=ALL"], "the level is one of OFF, TIMESTAMPS and TENSORS"),
        (["rate=-1"], "--trace-config=rate=-1: rate is a whole number from 0 to 4294967295"),
        (["opentelemetry,url=http://"], "url is no address"),
        (["opentelemetry,resource=a"], "write opentelemetry,resource=KEY=VALUE"),
        (["opentelemetry,bsp_max_queue_size=5"], "over bsp_max_queue_size"),
    ],
)
def test_a_wrong_setting_is_named(settings: list[str], told: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load_config({"http_port": 18080, "trace": build(*config(*settings))})
    assert told in refused.value.message


def test_older_flags_beside_trace_config_are_refused() -> None:
    with pytest.raises(ConfigError, match="exclude each other"):
        build("--trace-rate=5", *config("rate=5"))
