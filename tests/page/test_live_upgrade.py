"""The live view of an upgrade: its step, the share of the new version, the comparison and the verdict."""

from __future__ import annotations

import json
from pathlib import Path

from playwright.sync_api import expect

from tests.page.conftest import NARROW, ShowPage
from tests.page.test_layout import OUTSIDE
from tests.page.test_live import CONFIG, find_violations, open_live
from tests.support.repository_process import RepositoryProcess
from tests.support.service_process import PATIENCE_S, ServiceProcess, wait_until
from tests.support.triton_repository import write_model

UPGRADE = "/v2/repository/models/words/upgrade"


def send_text(service: ServiceProcess) -> None:
    tensor = {"name": "I", "shape": [1, 1], "datatype": "BYTES", "data": ["a"]}
    assert service.http("/v2/models/words/infer", json.dumps({"inputs": [tensor]})).status == 200


def test_a_canary_is_shown_with_its_share_and_its_verdict(show: ShowPage, tmp_path: Path) -> None:
    write_model(tmp_path, "words", CONFIG)
    arguments = ["--model-control-mode=explicit", "--load-model=*"]
    with RepositoryProcess(tmp_path, arguments=arguments) as service:
        page = open_live(show, service, width=NARROW)
        card = page.locator(".upgrade")
        expect(card).to_be_hidden()
        write_model(tmp_path, "words", CONFIG, version="2")
        settings = {"requests": 4, "timeout_s": PATIENCE_S, "share_cpu": True, "latency_limit": 1000}
        canary = {"version": "2", "canary": [25, 100], "step_requests": 1000, **settings}
        assert service.http(UPGRADE, json.dumps(canary)).status == 202

        def is_shifting() -> bool:
            send_text(service)
            return bool(service.http(UPGRADE).json["canary"]["share"] == 25)

        wait_until(is_shifting, "the new version gets requests", PATIENCE_S)
        for _ in range(8):
            send_text(service)
        expect(card.get_by_role("heading")).to_have_text("Upgrade of words")
        expect(card).to_contain_text("1 → 2")
        expect(card).to_contain_text("1 of 2: 25 % of the requests")
        expect(card.get_by_role("progressbar", name="Share of the new version")).to_have_attribute(
            "value", "25"
        )
        expect(card).to_contain_text("100.00 %")
        expect(card.locator("tbody tr td").nth(1)).to_have_text("2")
        assert find_violations(page) == []
        page.emulate_media(color_scheme="dark")
        assert find_violations(page) == []
        assert page.evaluate(OUTSIDE) == []
        service.http(UPGRADE, method="DELETE")
        expect(card.locator(".state")).to_have_text("no verdict")
        page.get_by_role("button", name="中文").click()
        expect(card).to_contain_text("没有结论")
        assert page.evaluate(OUTSIDE) == []
