"""The page in a wide and in a narrow window, in both languages, and under the fingers alone."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from tests.page.conftest import NARROW, WIDE, ShowPage
from tests.support.service_process import ServiceProcess

FOCUSED = "document.activeElement.labels?.[0]?.textContent ?? document.activeElement.textContent"
UNNAMED = """() => [...document.querySelectorAll("input, textarea, select, button")]
  .filter((one) => one.checkVisibility() && !one.labels?.length && !one.ariaLabel && !one.textContent.trim())
  .map((one) => one.outerHTML)"""
OUTSIDE = """() => [...document.querySelectorAll("main *")]
  .filter((one) => one.getBoundingClientRect().right > innerWidth).map((one) => one.outerHTML)"""


def open_everything(page: Page) -> None:
    for fold in page.locator("details[data-endpoint]").all():
        fold.locator("summary").first.click()
        fold.locator(".body").first.wait_for()
        inner = fold.locator("details summary")
        if inner.count():
            inner.first.click()
            fold.locator("details .body").first.wait_for()


@pytest.mark.parametrize("width", [WIDE, NARROW])
@pytest.mark.parametrize("name", ["photos", "people", "ensembles"])
def test_nothing_is_wider_than_the_window(
    show: ShowPage, request: pytest.FixtureRequest, name: str, width: int
) -> None:
    page = show(request.getfixturevalue(name), width=width)
    page.locator(".attempt .send").click()
    expect(page.locator(".attempt .answer")).to_be_visible()
    for other in ("中文", "English"):
        open_everything(page)
        assert page.evaluate(OUTSIDE) == []
        assert page.evaluate("document.documentElement.scrollWidth") == width
        page.get_by_role("button", name=other).click()


def test_bars_stand_beside_the_json_or_above_it_where_there_is_no_room(
    show: ShowPage, photos: ServiceProcess
) -> None:
    for width in (WIDE, NARROW):
        page = show(photos, width=width)
        page.locator(".attempt .send").click()
        bars, json = page.locator(".labels").bounding_box(), page.locator(".answer .json").bounding_box()
        assert bars is not None and json is not None
        if width == WIDE:
            assert bars["x"] + bars["width"] <= json["x"]
        else:
            assert bars["y"] + bars["height"] <= json["y"]


def test_endpoints_are_folded_at_first(show: ShowPage, people: ServiceProcess) -> None:
    page = show(people)
    endpoints = page.locator("details[data-endpoint]")
    names = [fold.get_attribute("data-endpoint") for fold in endpoints.all()]
    assert names == ["key/value", "v1", "v2", "grpc", "health"]
    assert page.locator("details[open]").count() == 0


def test_everything_can_be_done_with_the_keyboard(show: ShowPage, words: ServiceProcess) -> None:
    page = show(words)
    expect(page.locator(".card .state")).to_contain_text("ready")
    visited: list[str] = []

    def tab_to(name: str) -> None:
        for _ in range(20):
            page.keyboard.press("Tab")
            visited.append(page.evaluate(FOCUSED).strip())
            if visited[-1].startswith(name):
                return
        raise AssertionError(f"Tab does not reach {name}: {visited}")

    tab_to("text")
    page.keyboard.press("Control+A")
    page.keyboard.type("up")
    page.keyboard.press("Control+Enter")
    expect(page.locator(".bars .name")).to_have_text("rises")
    page.keyboard.press("Control+A")
    page.keyboard.type("down")
    tab_to("Send")
    page.keyboard.press("Enter")
    expect(page.locator(".bars .name")).to_have_text("falls")
    assert page.evaluate(FOCUSED) == "Send"  # it is still there for the next
    tab_to("Python")
    page.keyboard.press("Space")
    expect(page.locator(".attempt .commands pre")).to_contain_text("import json")
    tab_to("Key/value")
    page.keyboard.press("Enter")
    expect(page.locator("[data-endpoint='key/value'] .method")).to_be_visible()  # filled after the key press
    tab_to("POST")
    page.keyboard.press("Enter")
    expect(page.get_by_label("Body (JSON)")).to_be_visible()


def test_every_control_has_a_name_and_shows_the_focus(show: ShowPage, people: ServiceProcess) -> None:
    page = show(people)
    open_everything(page)
    assert page.evaluate(UNNAMED) == []
    page.keyboard.press("Tab")
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"


def test_another_model_is_chosen_with_the_keyboard_and_kept(show: ShowPage, people: ServiceProcess) -> None:
    page = show(people)
    chooser = page.get_by_label("Model", exact=True)
    assert chooser.locator("option").all_text_contents() == [
        "people (the whole service)",
        "people_model (Op people by itself)",
    ]
    chooser.focus()
    page.keyboard.press("ArrowDown")
    expect(page.get_by_label("age FP32 [1]")).to_have_value("[1]")
    expect(chooser).to_be_focused()
    page.locator(".attempt .send").click()
    expect(page.locator(".attempt .answer .json")).to_contain_text("probabilities")
    page.locator('details[data-endpoint="v2"] summary').first.click()
    paths = page.locator('details[data-endpoint="v2"] .path')
    expect(paths.first).to_have_text("/v2/models/people_model/infer")
    assert "/v2/models/people/infer" not in paths.all_text_contents()
    page.reload()
    expect(chooser).to_have_value("people_model")


def test_an_ensemble_of_several_ops_is_one_of_the_models(show: ShowPage, ensembles: ServiceProcess) -> None:
    page = show(ensembles)
    chooser = page.get_by_label("Model", exact=True)
    assert [one.split()[0] for one in chooser.locator("option").all_text_contents()] == [
        "test",
        "twice",
        "remembered",
    ]
    chooser.select_option("remembered")
    expect(page.get_by_label("memory FP32 [2,")).to_be_visible()
    expect(page.locator(".card .state")).to_have_text("ready, 2 of 2 instances")
