"""docs/operations.md: its alerts, panels and settings are those of docker/observe/ and of config.yml."""

from __future__ import annotations

import json
import re

import pytest
import yaml

from pipeline.config.trace_section import TraceConfig
from tests.support.followed_documents import blocks_of
from tests.support.service_process import ROOT

OBSERVE = ROOT / "docker" / "observe"
EACH_PAGE = pytest.mark.parametrize("name", ["operations.md", "operations_zh.md"])


def read(name: str) -> str:
    return (ROOT / "docs" / name).read_text("utf-8")


@EACH_PAGE
def test_each_alert_has_a_row_that_says_what_to_do(name: str) -> None:
    rules = yaml.safe_load((OBSERVE / "alerts.yml").read_text("utf-8"))["groups"][0]["rules"]
    rows = re.findall(r"^\| `(Paddlewheel\w+)` \| .+ \| .+ \|$", read(name), re.M)
    assert rows == [rule["alert"] for rule in rules]


@EACH_PAGE
def test_the_panels_to_look_at_are_on_the_dashboard(name: str) -> None:
    dashboard = json.loads((OBSERVE / "grafana" / "paddlewheel.json").read_text("utf-8"))
    titles = {panel["title"] for panel in dashboard["panels"]}
    rows = re.findall(r"^\| [^|]+[?？] \| ([A-Z][^|]+) \|", read(name), re.M)
    assert len(rows) == 7
    assert {title for row in rows for title in re.split(r", |、", row)} <= titles


@EACH_PAGE
def test_the_trace_section_is_valid_and_names_the_collector_of_compose(name: str) -> None:
    (block,) = (block for block in blocks_of(ROOT / "docs" / name) if block.language == "yaml")
    trace = TraceConfig.model_validate(yaml.safe_load(block.text)["trace"])
    assert (trace.mode, trace.level, trace.rate) == ("opentelemetry", ["TIMESTAMPS"], 100)
    compose = yaml.safe_load((ROOT / "docker" / "compose.yml").read_text("utf-8"))["services"]
    assert "127.0.0.1:4318:4318" in compose["otel-collector"]["ports"]
    assert trace.collector_url == "http://localhost:4318/v1/traces"
