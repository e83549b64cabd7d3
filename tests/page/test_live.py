"""The live view: the slowest Op and the cause of an error are found by clicking, or with the keyboard."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import axe_playwright_python
import pytest
from playwright.sync_api import Page, expect

from tests.page.conftest import NARROW, WIDE, ShowPage
from tests.page.test_layout import OUTSIDE, UNNAMED
from tests.support.repository_process import RepositoryProcess
from tests.support.service_process import APPS, PATIENCE_S, ServiceProcess, key_value
from tests.support.triton_repository import write_model

AXE = next(Path(axe_playwright_python.__file__).parent.rglob("axe.min.js")).read_text("utf-8")
PATIENCE_MS = 1000 * PATIENCE_S
SECRET = "-2718281"
CONFIG = """
backend: "identity"
max_batch_size: 4
input { name: "I" data_type: TYPE_STRING dims: 1 }
output { name: "O" data_type: TYPE_STRING dims: 1 }
"""


@pytest.fixture(scope="module")
def watched() -> Iterator[ServiceProcess]:
    """Three Ops after some requests: `rank` is slow, and `parse` has raised an exception."""
    with ServiceProcess(APPS / "watched.py") as service:
        for number in ("1", "2"):
            service.predict({"number": number})
        body = {**json.loads(key_value({"number": SECRET})), "logid": 4711}
        assert service.http("/test/prediction", json.dumps(body)).json["err_no"] != 0
        yield service


def open_live(show: ShowPage, service: ServiceProcess, **options: Any) -> Page:
    page = show(service, **options)
    page.get_by_role("link", name="Live").click()
    page.locator(".box").first.wait_for()
    return page


def find_violations(page: Page) -> list[str]:
    """The rules of axe-core that the page breaks, with the elements."""
    page.evaluate(AXE)
    found = page.evaluate("axe.run()")
    return [f"{rule['id']}: {[node['html'] for node in rule['nodes']]}" for rule in found["violations"]]


def test_the_slowest_op_is_found_by_clicking(show: ShowPage, watched: ServiceProcess) -> None:
    page = open_live(show, watched)
    slowest = page.get_by_role("button", name="Slowest Op")
    expect(slowest).to_contain_text("rank")
    expect(page.locator(".box.slowest .name")).to_have_text("rank")
    slowest.click()
    details = page.locator(".details")
    expect(details.get_by_role("heading")).to_have_text("Op rank")
    widths = details.locator(".stage").evaluate_all(
        "(all) => all.map((one) => [one.offsetWidth, one.className])"
    )
    assert max(widths)[1] == "stage postprocess"
    page.get_by_role("button", name="Op parse").click()
    expect(details.get_by_role("heading")).to_have_text("Op parse")
    expect(page.locator(".box[aria-pressed=true] .name")).to_have_text("parse")


def test_the_cause_of_an_error_is_found_by_clicking(show: ShowPage, watched: ServiceProcess) -> None:
    page = open_live(show, watched)
    page.get_by_role("button", name="Latest error: HookFailed").click()
    cause = page.locator(".errors details")
    expect(cause).to_contain_text("ValueError in preprocess, watched.py:")
    expect(cause).to_contain_text("client's id 4711")
    assert SECRET not in page.content()
    cause.get_by_role("button", name="parse").click()
    details = page.locator(".details")
    expect(details.get_by_role("heading")).to_have_text("Op parse")
    details.get_by_role("button", name="HookFailed").click()
    expect(cause.locator("summary")).to_be_focused()


def test_figures_follow_new_requests(show: ShowPage, watched: ServiceProcess) -> None:
    page = open_live(show, watched)
    expect(page.locator(".totals")).to_contain_text(
        "0.00", timeout=PATIENCE_MS
    )  # no request between two answers
    watched.predict({"number": "5"})
    box = page.locator(".box", has_text="format")
    expect(box).to_have_attribute("aria-label", re.compile(r"Op format, (?!0\.00)\d"), timeout=PATIENCE_MS)
    page.get_by_role("button", name="Pause").click()
    expect(page.get_by_role("button", name="Go on")).to_be_visible()


def test_everything_can_be_done_with_the_keyboard(show: ShowPage, watched: ServiceProcess) -> None:
    page = show(watched)

    def tab_to(label: str) -> None:
        name = "document.activeElement.ariaLabel || document.activeElement.textContent"
        for _ in range(30):
            page.keyboard.press("Tab")
            if page.evaluate(name).startswith(label):
                return
        raise AssertionError(f"Tab does not reach {label}")

    tab_to("Live")
    page.keyboard.press("Enter")
    page.locator(".box").first.wait_for()
    tab_to("Op rank")
    page.keyboard.press("Space")
    expect(page.locator(".details h2")).to_be_focused()
    tab_to("HookFailed")
    page.keyboard.press("Enter")
    expect(page.locator(".errors details")).to_contain_text("watched.py")


@pytest.mark.parametrize("width", [WIDE, NARROW])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_violation_and_nothing_is_wider_than_the_window(
    show: ShowPage, watched: ServiceProcess, scheme: str, width: int
) -> None:
    page = open_live(show, watched, width=width, color_scheme=scheme)
    page.get_by_role("button", name="Slowest Op").click()
    page.locator(".errors summary").click()
    page.locator(".errors .body").wait_for()
    assert find_violations(page) == []
    assert page.evaluate(UNNAMED) == []
    for other in ("中文", "English"):
        assert page.evaluate(OUTSIDE) == []
        assert page.evaluate("document.documentElement.scrollWidth") == width
        page.get_by_role("button", name=other).click()
    page.get_by_role("link", name="Try it").click()
    page.locator(".endpoints").wait_for()
    assert find_violations(page) == []


def test_it_is_there_in_chinese(show: ShowPage, watched: ServiceProcess) -> None:
    page = show(watched, locale="zh-CN")
    page.get_by_role("link", name="运行状态").click()
    page.get_by_role("button", name="最慢的 Op：rank").click()
    expect(page.locator(".details")).to_contain_text("后处理")


def test_models_of_a_repository_are_shown_with_their_versions_and_states(
    show: ShowPage, tmp_path: Path
) -> None:
    for name in ("first", "second"):
        write_model(tmp_path, name, CONFIG)
    write_model(tmp_path, "misspelt", CONFIG.replace("max_batch_size", "max_batch_sise"))
    with RepositoryProcess(tmp_path) as repository:
        page = open_live(show, repository)
        rows = page.locator(".models tbody tr")
        expect(rows).to_have_count(3)
        expect(rows.filter(has_text="misspelt")).to_contain_text("did you mean max_batch_size?")
        expect(rows.filter(has_text="first").locator(".state")).to_have_text("READY")
        expect(page.locator(".box")).to_have_count(2)
        page.get_by_role("button", name="second").first.click()
        expect(page.locator(".details")).to_contain_text("ready, 1 of 1 instances")
