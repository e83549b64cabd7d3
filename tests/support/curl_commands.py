"""Commands of curl, as documents and `paddlewheel new` print them, done without curl: it may be missing."""

from __future__ import annotations

import shlex
from pathlib import Path

import requests

from tests.support.service_process import HttpAnswer, ServiceProcess

FORM = "application/x-www-form-urlencoded"  # what curl says where nobody names a type


def run_curl(command: str, service: ServiceProcess, folder: Path) -> HttpAnswer:
    """The answer that curl would get in this folder; whichever port it names, the service is asked."""
    program, *words = shlex.split(command)
    assert program == "curl", command
    headers, body, urls = {"content-type": FORM}, None, list[str]()
    form: dict[str, tuple[str | None, str | bytes]] = {}
    while words:
        word = words.pop(0)
        if word == "-s":
            continue
        if word == "-H":
            name, _, value = words.pop(0).partition(":")
            headers[name.strip().lower()] = value.strip()
        elif word in ("-d", "--data-binary"):
            body = _body(words.pop(0), folder, whole=word != "-d")
        elif word == "-F":
            name, _, value = words.pop(0).partition("=")
            file = value.removeprefix("@")
            form[name] = (file, (folder / file).read_bytes()) if file != value else (None, value)
        else:
            assert not word.startswith("-"), f"{word} of {command}"
            urls.append(word)
    (url,) = urls
    if form:
        upload = requests.Request("POST", service.url, files=form).prepare()
        headers, body = {"content-type": upload.headers["content-type"]}, upload.body
    host, slash, path = url.removeprefix("http://").partition("/")
    assert host.partition(":")[0] in ("localhost", "127.0.0.1"), url
    return service.http(slash + path, body, headers=headers if body is not None else None)


def _body(given: str, folder: Path, *, whole: bool) -> bytes:
    if not given.startswith("@"):
        return given.encode()
    data = (folder / given[1:]).read_bytes()
    return data if whole else data.replace(b"\r", b"").replace(b"\n", b"")
