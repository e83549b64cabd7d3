"""What the page keeps for the next time: language, model and edits."""

from __future__ import annotations

from playwright.sync_api import expect

from tests.page.conftest import ShowPage
from tests.support.service_process import ServiceProcess


def test_the_language_is_the_browser_s_until_another_is_chosen_and_then_kept(
    show: ShowPage, words: ServiceProcess
) -> None:
    page = show(words, locale="zh-CN")
    expect(page.locator(".attempt h2")).to_have_text("试一试")
    assert page.locator("html").get_attribute("lang") == "zh-CN"
    page.get_by_role("button", name="English").click()
    expect(page.locator(".attempt h2")).to_have_text("Try it")
    page.reload()
    expect(page.locator(".attempt h2")).to_have_text("Try it")
    assert page.locator("html").get_attribute("lang") == "en"


def test_edits_are_kept_until_the_example_is_wanted_back(show: ShowPage, people: ServiceProcess) -> None:
    page = show(people)
    job = page.get_by_label("job", exact=True)
    job.fill("driver")
    page.reload()
    expect(job).to_have_value("driver")
    page.get_by_role("button", name="Back to the example").click()
    expect(job).to_have_value("text")
    page.reload()
    expect(job).to_have_value("text")
    expect(page.get_by_role("button", name="Back to the example")).to_have_count(0)


def test_edits_and_answers_outlive_a_change_of_language(show: ShowPage, words: ServiceProcess) -> None:
    page = show(words)
    page.get_by_label("text", exact=True).fill("up")
    page.locator(".attempt .send").click()
    expect(page.locator(".bars .name")).to_have_text("rises")
    page.get_by_role("button", name="中文").click()
    expect(page.get_by_label("text", exact=True)).to_have_value("up")
    expect(page.locator(".bars .name")).to_have_text("rises")


def test_bodies_that_were_edited_at_a_endpoint_are_kept(show: ShowPage, words: ServiceProcess) -> None:
    page = show(words)

    def opened() -> None:
        fold = page.locator('details[data-endpoint="v1"]')
        fold.locator("summary").first.click()
        fold.locator("details summary").first.click()

    opened()
    body = page.get_by_label("Body (JSON)").first
    body.fill('{"instances": []}')
    page.reload()
    opened()
    expect(body).to_have_value('{"instances": []}')


def test_the_page_works_where_the_browser_keeps_nothing(show: ShowPage, words: ServiceProcess) -> None:
    page = show(words)
    page.add_init_script(
        "Object.defineProperty(window, 'localStorage', { get() { throw new Error('refused'); } })"
    )
    page.reload()
    page.get_by_label("text", exact=True).fill("down")
    page.get_by_role("button", name="中文").click()
    page.locator(".attempt .send").click()
    expect(page.locator(".bars .name")).to_be_visible()


def test_what_is_kept_and_no_text_any_more_is_left_aside(show: ShowPage, words: ServiceProcess) -> None:
    page = show(words)
    page.get_by_label("text", exact=True).fill("up")
    page.evaluate("Object.keys(localStorage).forEach((name) => localStorage.setItem(name, '[[3]]'))")
    page.reload()
    expect(page.get_by_label("text", exact=True)).to_have_value("text")
