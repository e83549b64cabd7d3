"""Files in multipart forms, as `curl -F` and browsers send them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from pipeline.errors import MalformedBody
from pipeline.front.http.multipart import MAX_PARTS, parse_form
from pipeline.front.http.openapi import upload_form
from tests.support.curl_commands import run_curl
from tests.support.service_process import APPS, ServiceProcess

WAV = b"RIFF\x24\x00\x00\x00WAVEfmt \r\n--b\r\n\x00\xff"
PNG = b"\x89PNG\r\n\x1a\n--"
PATH = "/v1/models/test:predict"
FORM = "multipart/form-data; boundary=edge"


@pytest.fixture(scope="module")
def service() -> Iterator[ServiceProcess]:
    with ServiceProcess(APPS / "uploads.py", {"dag": {"http_errors": "status"}}) as service:
        yield service


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "talk.wav").write_bytes(WAV)
    (tmp_path / "a photo.png").write_bytes(PNG)
    return tmp_path


@pytest.mark.parametrize("path", [PATH, "/test/prediction"])
def test_curl_sends_files_and_texts(service: ServiceProcess, files: Path, path: str) -> None:
    fields = "-F file=@talk.wav -F 'picture=@a photo.png' -F language=中文"
    answer = run_curl(f"curl -s localhost{path} {fields}", service, files)
    for told in (f"sound: {len(WAV)}", f"picture: {len(PNG)}", "language: 中文"):
        assert told in answer.body.decode()


def test_a_file_alone_needs_no_media_type(service: ServiceProcess, files: Path) -> None:
    answer = run_curl(f"curl -s localhost{PATH} --data-binary @talk.wav", service, files)
    assert f"sound: {len(WAV)}" in answer.body.decode()


def test_requests_sends_a_file(service: ServiceProcess) -> None:
    answer = requests.post(f"{service.url}{PATH}", files={"sound": ("x", WAV)}, timeout=60)
    assert answer.status_code == 200 and f"sound: {len(WAV)}" in answer.text


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"page": ("a.pdf", b"%PDF-1", "application/pdf")}, "name the field sound or picture"),
        ({"text": (None, b"x")}, "has no file for sound or picture"),
        ({"sound": (None, b"x"), "picture": ("p", PNG), "wav": ("w.wav", WAV)}, "two values for 'sound'"),
        ({"sound": ("w.wav", WAV), "text": (None, b"\xff")}, "'text' of the form is no UTF-8"),
    ],
)
def test_a_form_that_fits_no_input_is_refused(
    service: ServiceProcess, fields: dict[str, tuple[str | None, bytes]], told: str
) -> None:
    answer = requests.post(f"{service.url}{PATH}", files=fields, timeout=60)
    assert (answer.status_code, told in answer.json()["error"]) == (400, True), answer.text


@pytest.mark.parametrize(
    ("content_type", "body", "told"),
    [
        ("multipart/form-data", b"--edge--", "no boundary"),
        (f"multipart/form-data; boundary={'x' * 71}", b"", "no boundary"),
        (FORM, b"", "does not begin with its boundary"),
        (FORM, b"--edge\r\n", "has no end"),
        (FORM, b"--edge\r\n\r\n\r\n--edge--", "has no name"),
        (FORM, b"--edge\r\nno header\r\n--edge--", "has no headers"),
        (FORM, b"--edge\r\na: %b\r\n\r\n\r\n--edge--" % (b"x" * 5000), "over 4096 bytes"),
        (FORM, b'--edge\r\ncontent-disposition: form-data; name=""\r\n\r\nx\r\n--edge--', "has no name"),
        (
            FORM,
            b"--edge\r\na: b\r\n\r\n" + b"\r\n--edge\r\na: b\r\n\r\n" * MAX_PARTS + b"\r\n--edge--",
            "parts",
        ),
    ],
)
def test_a_malformed_form_is_refused(
    service: ServiceProcess, content_type: str, body: bytes, told: str
) -> None:
    answer = service.http(PATH, body, headers={"content-type": content_type})
    assert (answer.status, told in answer.json["error"]) == (400, True), answer.body


def test_no_prefix_of_a_form_is_taken_for_a_form() -> None:
    form = (
        b'--edge\r\nContent-Disposition: form-data; name="a"; filename="b"\r\n\r\n\r\n--\x00\r\n--edge--\r\n'
    )
    assert parse_form(FORM, form)[0].content == b"\r\n--\x00"
    for length in range(len(form) - 3):
        with pytest.raises(MalformedBody):
            parse_form(FORM, form[:length])


def test_the_openapi_document_declares_the_form(service: ServiceProcess) -> None:
    paths = service.http("/openapi.json").json["paths"]
    for path in (PATH, "/test/prediction"):
        form = paths[path]["post"]["requestBody"]["content"]["multipart/form-data"]
        assert {name: field["format"] for name, field in form["schema"]["properties"].items()} == {
            "sound": "binary",
            "picture": "binary",
        }
        assert form["schema"]["anyOf"] == [{"required": ["sound"]}, {"required": ["picture"]}]
        assert form["encoding"] == {
            "sound": {"contentType": "audio/wav"},
            "picture": {"contentType": "image/*"},
        }
    assert "multipart/form-data" not in str(paths["/v2/models/test/infer"])


def test_a_form_of_other_inputs_has_texts_and_a_csv_file_stands_alone() -> None:
    image = upload_form({"image/*": "image"}, ["image", "weight"])
    assert image is not None and image["schema"]["required"] == ["image"]
    assert image["schema"]["properties"]["weight"] == {"type": "string"}
    table = upload_form({"text/csv": "csv"}, ["age", "job"])
    assert table is not None and list(table["schema"]["properties"]) == ["csv"]
    assert upload_form({}, ["text"]) is None


def test_a_refusal_shows_how_to_send_a_file(service: ServiceProcess) -> None:
    answer = service.http(PATH, "[]")
    assert answer.status == 400 and answer.json["error"].endswith("; send a file: curl -F sound=@FILE")
