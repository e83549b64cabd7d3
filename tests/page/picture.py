"""Makes docs/docs_page.png and docs/docs_live.png of the page at /docs: `python -m tests.page.picture`.

It needs Chromium (`make test-page`), and docs_page.png the demo model (`paddlewheel convert demo`). Names of
pictures as arguments make these alone.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml
from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

from tests.support.service_process import APPS, ROOT, ServiceProcess, key_value

SIZE = {"width": 900, "height": 900}
HEADLINE = "国足客场两球取胜，提前一轮出线"


@contextmanager
def open_page(browser: Browser, url: str) -> Iterator[Page]:
    page = browser.new_page(viewport=SIZE, locale="en-US")
    page.goto(url)
    yield page
    page.close()


def save(page: Page, path: Path) -> None:
    page.evaluate("document.activeElement.blur()")
    picture = Image.open(io.BytesIO(page.screenshot(full_page=True)))
    picture.quantize(64).save(path, optimize=True)


def make_page_picture(browser: Browser, path: Path) -> None:
    config = yaml.safe_load((ROOT / "config.yml").read_text("utf-8"))
    for port in ("http_port", "rpc_port"):  # others than those of a service that runs here
        del config[port]
    service = ServiceProcess(ROOT / "web_service.py", config, name="bert", arguments=("--config", "{config}"))
    with service, open_page(browser, f"{service.url}/docs") as page:
        page.get_by_label("text", exact=True).fill(HEADLINE)
        page.locator(".attempt .send").click()
        page.locator(".bars").wait_for()
        page.locator(".card .state.good").wait_for()
        page.locator("details[data-endpoint]").first.wait_for()
        save(page, path)


def make_live_picture(browser: Browser, path: Path) -> None:
    service = ServiceProcess(APPS / "watched.py")
    with service, open_page(browser, f"{service.url}/docs#live") as page:
        page.locator(".box").first.wait_for()
        for number in range(10):
            service.predict({"number": str(number)})
        service.http("/test/prediction", key_value({"number": "-1"}))
        page.get_by_role("button", name="Latest error").click()
        page.get_by_role("button", name="Slowest Op").click()
        page.locator(".totals", has_text=" ms").wait_for()
        save(page, path)


PICTURES: dict[str, Callable[[Browser, Path], None]] = {
    "docs_page": make_page_picture,
    "docs_live": make_live_picture,
}


def main() -> None:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=os.environ.get("CHROMIUM", "/usr/bin/chromium"))
        for name in sys.argv[1:] or PICTURES:
            PICTURES[name](browser, ROOT / "docs" / f"{name}.png")
        browser.close()


if __name__ == "__main__":
    main()
