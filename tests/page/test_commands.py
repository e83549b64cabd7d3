"""What the page gives to copy: curl and Python that get what the page gets, and gRPC's programs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.page.conftest import ShowPage
from tests.support.curl_commands import run_curl
from tests.support.image_files import get_recording_path, photo
from tests.support.service_process import APPS, ROOT, HttpAnswer, ServiceProcess

QUOTED = 'it\'s "so" — \\n 上涨 $HOME `ls`'
KEY = "alice-0123456789abcdef"


def get_error_text(box: Locator, name: str) -> str:
    """What the box gives to copy for curl or Python."""
    box.get_by_role("button", name=name, exact=True).click()
    return box.locator("pre").text_content() or ""


def by_curl(command: str, service: ServiceProcess, folder: Path) -> HttpAnswer:
    return run_curl(command.replace("\\\n", " "), service, folder)


def by_python(program: str, folder: Path, **variables: str) -> str:
    """What it prints, run in that folder."""
    search_path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, timeout=60,
        env={**os.environ, "PYTHONPATH": search_path, **variables},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def answered(page: Page) -> Any:
    """What the page shows once it has sent."""
    page.locator(".attempt .send").click()
    shown = page.locator(".attempt .answer .json")
    expect(shown).to_be_visible()
    return json.loads(shown.text_content() or "")


def endpoint(page: Page, name: str) -> Locator:
    """The fold of an endpoint, opened."""
    fold = page.locator(f'details[data-endpoint="{name}"]')
    fold.locator("summary").first.click()
    return fold


def test_both_commands_get_what_the_page_gets_whatever_is_typed(
    show: ShowPage, words: ServiceProcess, tmp_path: Path
) -> None:
    page = show(words)
    page.get_by_label("text", exact=True).fill(QUOTED)
    box = page.locator(".attempt .commands")
    expected = answered(page)
    assert by_curl(get_error_text(box, "curl"), words, tmp_path).json == expected
    assert json.loads(by_python(get_error_text(box, "Python"), tmp_path)) == expected


def test_a_picked_image_is_a_file_in_both_commands(
    show: ShowPage, photos: ServiceProcess, tmp_path: Path
) -> None:
    file = tmp_path / "it's a photo.png"
    file.write_bytes(get_recording_path(photo(40, 60)))
    page = show(photos)
    page.get_by_label("image").set_input_files(file)
    box = page.locator(".attempt .commands")
    expected = answered(page)
    curl = get_error_text(box, "curl")
    assert "--data-binary @'it'\\''s a photo.png'" in curl
    assert by_curl(curl, photos, tmp_path).json == expected
    assert json.loads(by_python(get_error_text(box, "Python"), tmp_path)) == expected


def test_the_example_image_needs_no_file(show: ShowPage, photos: ServiceProcess, tmp_path: Path) -> None:
    page = show(photos)
    box = page.locator(".attempt .commands")
    expected = answered(page)
    assert by_curl(get_error_text(box, "curl"), photos, tmp_path).json == expected
    assert json.loads(by_python(get_error_text(box, "Python"), tmp_path)) == expected


def test_an_image_among_other_inputs_is_read_by_both_commands(
    show: ShowPage, weighed: ServiceProcess, tmp_path: Path
) -> None:
    file = tmp_path / "a photo.png"
    file.write_bytes(get_recording_path(photo(8, 8)))
    page = show(weighed)
    page.get_by_label("image").set_input_files(file)
    page.get_by_label("weight").fill("[2.5]")
    box = page.locator(".attempt .commands")
    expected = answered(page)
    body, _, asked = get_error_text(box, "curl").partition(" |\n")
    made = subprocess.run(["/bin/sh", "-c", body], cwd=tmp_path, capture_output=True, check=True).stdout
    assert asked.endswith("-d @-")
    assert weighed.http(f"/v1/models/{weighed.name}:predict", made).json == expected
    assert json.loads(by_python(get_error_text(box, "Python"), tmp_path)) == expected


def test_every_endpoint_has_an_example_and_both_commands_of_it_work(
    show: ShowPage, people: ServiceProcess, tmp_path: Path
) -> None:
    page = show(people)
    for name in ("key/value", "v1", "v2"):
        operation = endpoint(page, name).locator("details").first
        operation.locator("summary").click()
        operation.get_by_role("button", name="Send").click()
        shown = operation.locator("pre.json")
        expect(shown).to_be_visible()
        expected = json.loads(shown.text_content() or "")
        box = operation.locator(".commands")
        assert "error" not in expected and expected.get("err_no", 0) == 0
        assert by_curl(get_error_text(box, "curl"), people, tmp_path).json == expected, name
        assert json.loads(by_python(get_error_text(box, "Python"), tmp_path)) == expected, name


def test_a_page_that_is_only_read_has_commands_without_a_body(
    show: ShowPage, people: ServiceProcess, tmp_path: Path
) -> None:
    page = show(people)
    operation = endpoint(page, "health").locator("details").first
    operation.locator("summary").click()
    box = operation.locator(".commands")
    assert by_curl(get_error_text(box, "curl"), people, tmp_path).json == {"live": True}
    assert json.loads(by_python(get_error_text(box, "Python"), tmp_path)) == {"live": True}


def test_both_programs_for_grpc_are_answered(show: ShowPage, people: ServiceProcess, tmp_path: Path) -> None:
    page = show(people)
    boxes = endpoint(page, "grpc").locator(".commands")
    expect(boxes).to_have_count(2)
    for box in boxes.all():
        assert "label" in by_python(get_error_text(box, "Python"), tmp_path)


def test_what_is_copied_is_what_stands_there(show: ShowPage, words: ServiceProcess) -> None:
    page = show(words, permissions=["clipboard-read", "clipboard-write"])
    box = page.locator(".attempt .commands")
    for name in ("curl", "Python"):
        text = get_error_text(box, name)
        box.get_by_role("button", name="Copy").click()
        expect(box.get_by_role("button", name="Copied")).to_be_visible()
        assert page.evaluate("navigator.clipboard.readText()") == text


def test_without_a_clipboard_for_scripts_the_text_is_copied_all_the_same(
    show: ShowPage, words: ServiceProcess
) -> None:
    page = show(words, permissions=["clipboard-read", "clipboard-write"])
    page.evaluate("navigator.clipboard.writeText = undefined")  # as on http beyond localhost
    box = page.locator(".attempt .commands")
    box.get_by_role("button", name="Copy").click()
    expect(box.get_by_role("button", name="Copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == box.locator("pre").text_content()


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A service that asks for an API key."""
    keys = tmp_path_factory.mktemp("keys") / "keys"
    keys.write_text(f"alice:{KEY}\n")
    config = {"security": {"api_keys": str(keys)}}
    with ServiceProcess(APPS / "rows.py", config, env={"DECLARED": "open"}, wait=False) as service:
        service.wait_for_log("is ready")
        yield service


def test_an_api_key_is_asked_for_and_never_written_down(
    show: ShowPage, guarded: ServiceProcess, tmp_path: Path
) -> None:
    page = show(guarded)
    expect(page.locator("#lead")).to_have_text("The service asks for an API key.")
    key = page.get_by_label("API key")
    key.fill("wrong")
    key.press("Enter")
    expect(page.locator("#lead")).to_have_text("The service does not know this API key.")
    key.fill(KEY)
    page.get_by_role("button", name="Use").click()
    expected = answered(page)
    box = page.locator(".attempt .commands")
    program = get_error_text(box, "Python")
    assert json.loads(by_python(program, tmp_path, API_KEY=KEY)) == expected
    curl = get_error_text(box, "curl")
    assert '-H "authorization: Bearer $API_KEY"' in curl
    assert by_curl(curl.replace("$API_KEY", KEY), guarded, tmp_path).json == expected
    for box in endpoint(page, "grpc").locator(".commands").all():
        assert by_python(get_error_text(box, "Python"), tmp_path, API_KEY=KEY)
    assert KEY not in page.evaluate("JSON.stringify(localStorage)")
    assert KEY not in (page.locator("main").text_content() or "")


@pytest.mark.parametrize(("name", "example"), [("photos", "image/png"), ("people", "text/csv")])
def test_commands_of_an_example_file_need_no_file(
    show: ShowPage, request: pytest.FixtureRequest, name: str, example: str, tmp_path: Path
) -> None:
    service: ServiceProcess = request.getfixturevalue(name)
    page = show(service)
    page.get_by_role("group", name="Examples").get_by_role("button", name=example).click()
    expected = answered(page)
    box = page.locator(".attempt .commands")
    body, _, command = get_error_text(box, "curl").partition(" |\n")
    sent = subprocess.run(["/bin/sh", "-c", body], cwd=tmp_path, capture_output=True, check=True).stdout
    assert command.endswith("--data-binary @-") and f"content-type: {example}" in command
    answer = service.http(f"/v1/models/{name}:predict", sent, headers={"content-type": example})
    assert answer.json == expected
    assert json.loads(by_python(get_error_text(box, "Python"), tmp_path)) == expected


def test_an_edited_body_goes_back_to_the_example(show: ShowPage, words: ServiceProcess) -> None:
    page = show(words)
    operation = endpoint(page, "v1").locator("details").first
    operation.locator("summary").click()
    body, reset = (
        operation.get_by_label("Body (JSON)"),
        operation.get_by_role("button", name="Back to the example"),
    )
    example = body.input_value()
    expect(reset).to_have_count(0)
    body.fill("{}")
    reset.click()
    expect(body).to_have_value(example)
