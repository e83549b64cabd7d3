"""Files for Ops of an app, and the fields of embeddings."""

from __future__ import annotations

import json
from pathlib import Path

from playwright.sync_api import expect

from tests.page.conftest import ShowPage
from tests.page.test_commands import answered, by_curl, get_error_text
from tests.support.image_files import get_recording_path, photo
from tests.support.service_process import ServiceProcess


def test_files_of_an_op_of_an_app_are_sent(show: ShowPage, uploads: ServiceProcess, tmp_path: Path) -> None:
    (tmp_path / "talk.wav").write_bytes(b"RIFF\x04\x00\x00\x00WAVE")
    (tmp_path / "photo.png").write_bytes(get_recording_path(photo(8, 8)))
    page = show(uploads)
    page.get_by_label("picture").set_input_files(tmp_path / "photo.png")
    page.locator(".attempt .send").click()
    expect(page.get_by_text("pick a file")).to_be_visible()
    page.get_by_label("sound").set_input_files(tmp_path / "talk.wav")
    (told,) = answered(page)["predictions"]
    assert told == {"inputs": ["picture: 1", "sound: 1"]}


def test_an_example_file_fills_its_field(show: ShowPage, uploads: ServiceProcess, tmp_path: Path) -> None:
    page = show(uploads)
    examples = page.get_by_role("group", name="Examples")
    assert examples.get_by_role("button").all_text_contents() == ["KServe v1", "audio/wav", "image/png"]
    examples.get_by_role("button", name="audio/wav").click()
    (told,) = answered(page)["predictions"]
    assert told == {"inputs": ["picture: 1", "sound: 1"]}
    assert by_curl(get_error_text(page.locator(".attempt .commands"), "curl"), uploads, tmp_path).json == {
        "predictions": [told]
    }


def test_openais_curl_comes_first_and_gets_the_vector(
    show: ShowPage, finder: ServiceProcess, tmp_path: Path
) -> None:
    page = show(finder)
    box = page.locator(".attempt .commands")
    assert box.locator(".choice").first.text_content() == "OpenAI curl"
    page.get_by_label("text", exact=True).fill("w1 w2")
    told = by_curl(get_error_text(box, "OpenAI curl"), finder, tmp_path).json
    body = json.dumps({"inputs": "w1 w2"})
    assert told["data"][0]["embedding"] == finder.http("/embed", body).json[0]
    assert page.locator("details[data-endpoint]").first.get_attribute("data-endpoint") == "OpenAI"


def test_the_similarity_of_two_texts_is_shown(show: ShowPage, finder: ServiceProcess) -> None:
    page = show(finder)
    page.get_by_label("text 1").fill("w1 w2")
    page.get_by_label("text 2").fill("w2 w1")
    page.locator(".similarity .send").click()
    expect(page.locator(".cosine")).to_have_text("1.0000")
