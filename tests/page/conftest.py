"""A browser, pages at /docs that are watched, and the services that they are of."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.support import onnx_models
from tests.support.embedding_models import encoder
from tests.support.new_services import new_service
from tests.support.service_process import APPS, PATIENCE_S, ServiceProcess
from tests.support.table_models import people_with_gaps
from tests.support.text_services import NLI, TextProcess, classifier

WIDE, NARROW = 1280, 390
CLASSES = "ant,bee,cat,dog,eel,fox,gnu,hen,ibis,jay"
ShowPage = Callable[..., Page]


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """A headless Chromium, the one that `make test-page` names."""
    program = os.environ.get("CHROMIUM") or shutil.which("chromium")
    assert program is not None, "there is no Chromium here; `make test-page` installs it"
    expect.set_options(timeout=PATIENCE_S * 1000)
    with sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=program)


@pytest.fixture
def show(browser: Browser) -> Iterator[ShowPage]:
    """Opens /docs of a service in a browser of its own.

    A test fails whose page had a fault, or asked anybody but its service. width: of the window. The other
    arguments are those of `Browser.new_context`.
    """
    faults: list[str] = []
    contexts = []

    def opened(service: ServiceProcess, *, width: int = WIDE, **options: Any) -> Page:
        options = {"locale": "en-US", "viewport": {"width": width, "height": 900}, **options}
        context = browser.new_context(**options)
        context.set_default_timeout(PATIENCE_S * 1000)
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("console", lambda told: faults.append(told.text) if _is_fault(told.text, told.type) else None)
        page.on("request", lambda asked: None if _is_own(asked.url, service) else faults.append(asked.url))
        page.goto(f"{service.url}/docs")
        page.locator("main section, #keyed:visible").first.wait_for()
        return page

    yield opened
    for context in contexts:
        context.close()
    assert faults == []


def _is_fault(text: str, kind: str) -> bool:
    """A refused request, which the tests make on purpose, is none."""
    return kind in ("error", "warning") and "Failed to load resource" not in text


def _is_own(url: str, service: ServiceProcess) -> bool:
    return url.startswith((f"{service.url}/", "blob:"))


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    """Images of ten classes, the five best of which are answered."""
    yield from _new(tmp_path_factory, "photos", "--input", "image", "--labels", CLASSES)


@pytest.fixture(scope="session")
def people(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    """Rows of a table: age, hours, job."""
    yield from _new(tmp_path_factory, "people", "--input", "table", "--labels", "no,yes")


@pytest.fixture(scope="session")
def gaps(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    """Rows of a table whose cells may be missing: age, job."""
    folder = tmp_path_factory.mktemp("gaps")
    with new_service(folder, people_with_gaps(folder / "models"), "gaps") as new:
        yield new.service


@pytest.fixture(scope="session")
def topics(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    """A tensor of four numbers; any number of three labels."""
    labels = ("--labels", "economy,sports,culture", "--output", "multilabel")
    yield from _new(tmp_path_factory, "topics", *labels)


@pytest.fixture(scope="session")
def words(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    """A text of one word: up, down or another."""
    yield from _new(tmp_path_factory, "words", "--input", "text", "--labels", "rises,falls,unknown")


@pytest.fixture(scope="session")
def zero_shot(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    """Pairs of a text and a label of the caller's own."""
    with TextProcess(classifier(tmp_path_factory.mktemp("zero_shot"), NLI)) as service:
        yield service


@pytest.fixture(scope="session")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    """Two texts, in one of three classes."""
    with TextProcess(classifier(tmp_path_factory.mktemp("pairs"), ("a", "b", "c")), "--pair") as service:
        yield service


@pytest.fixture(scope="session")
def weighed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    """An image and a tensor."""
    yield from _new(tmp_path_factory, "weighed", "--input", "image")


@pytest.fixture(scope="session")
def finder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    """A vector for each text."""
    with TextProcess(encoder(tmp_path_factory.mktemp("finder") / "model", {"kind": "embedding"})) as service:
        yield service


@pytest.fixture(scope="session")
def uploads() -> Iterator[ServiceProcess]:
    """An Op of an app that takes a sound and a picture as files."""
    with ServiceProcess(APPS / "uploads.py") as service:
        yield service


@pytest.fixture(scope="session")
def ensembles() -> Iterator[ServiceProcess]:
    """A service of three models without examples."""
    with ServiceProcess(APPS / "ensembles.py") as service:
        yield service


def _new(factory: pytest.TempPathFactory, name: str, *options: str) -> Iterator[ServiceProcess]:
    folder: Path = factory.mktemp(name)
    with new_service(folder, onnx_models.bare(folder / "models", name), name, *options) as new:
        yield new.service
