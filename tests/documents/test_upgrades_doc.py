"""docs/upgrades.md: its options, and the files of Argo Rollouts and Flagger, fit command and service."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

import yaml

from client.connection_options import ConnectionOptions
from client.options import list_flags
from pipeline.dialects.kserve_v2.http_routes import UPGRADE
from pipeline.front.upgrades.upgrade import Result
from pipeline.launch.command_options import UpgradeOptions
from tests.support.followed_documents import blocks_of
from tests.support.service_process import ROOT

PAGE, CHINESE = (ROOT / "docs" / name for name in ("upgrades.md", "upgrades_zh.md"))
FILES = {block.title: block.text for block in blocks_of(PAGE) if block.title}


def test_the_tables_list_every_option() -> None:
    for page in (PAGE, CHINESE):
        flags = set(re.findall(r"`(--[a-z-]+)`", page.read_text("utf-8").partition("## ")[2]))
        assert flags >= set(list_flags(UpgradeOptions)) >= set(list_flags(ConnectionOptions))


def test_argo_rollouts_knows_each_result() -> None:
    (metric,) = yaml.safe_load(FILES["analysis-template.yaml"])["spec"]["metrics"]
    web = metric["provider"]["web"]
    assert web["jsonPath"] == "{$.result}"
    path = UPGRADE.fullmatch(urlsplit(web["url"]).path)
    assert path is not None and path["gate"] is None
    results = {
        name: re.findall(r'result == "(\w+)"', metric[name])
        for name in ("successCondition", "failureCondition")
    }
    assert results == {
        "successCondition": [Result.ACCEPTED],
        "failureCondition": [Result.REFUSED, Result.INCONCLUSIVE],
    }
    assert metric["inconclusiveLimit"] >= metric["count"], "a running upgrade does not end the analysis"


def test_flagger_asks_a_gate_for_each_verdict() -> None:
    webhooks = yaml.safe_load(FILES["flagger-webhooks.yaml"])["webhooks"]
    paths = [UPGRADE.fullmatch(urlsplit(webhook["url"]).path) for webhook in webhooks]
    gates = [(webhook["type"], path and path["gate"]) for webhook, path in zip(webhooks, paths, strict=True)]
    assert gates == [("confirm-promotion", Result.ACCEPTED), ("rollback", Result.REFUSED)]


def test_both_languages_show_the_same_files() -> None:
    assert blocks_of(PAGE) == blocks_of(CHINESE)
