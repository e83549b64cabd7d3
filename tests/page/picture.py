"""Makes docs/docs_page.png of the page of the default service: `python -m tests.page.picture`.

It needs Chromium (`make test-page`) and the demo model (`paddlewheel convert demo`).
"""

from __future__ import annotations

import io
import os

import yaml
from PIL import Image
from playwright.sync_api import sync_playwright

from tests.support.service_process import ROOT, ServiceProcess

SIZE = {"width": 900, "height": 900}
HEADLINE = "国足客场两球取胜，提前一轮出线"


def main() -> None:
    config = yaml.safe_load((ROOT / "config.yml").read_text("utf-8"))
    for port in ("http_port", "rpc_port"):  # others than those of a service that runs here
        del config[port]
    service = ServiceProcess(ROOT / "web_service.py", config, name="bert", arguments=("--config", "{config}"))
    with service, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=os.environ.get("CHROMIUM", "/usr/bin/chromium"))
        page = browser.new_page(viewport=SIZE, locale="en-US")
        page.goto(f"{service.url}/docs")
        page.get_by_label("text", exact=True).fill(HEADLINE)
        page.locator(".attempt .send").click()
        page.locator(".bars").wait_for()
        page.locator(".card .state.good").wait_for()
        page.locator("details[data-endpoint]").first.wait_for()
        page.evaluate("document.activeElement.blur()")
        picture = Image.open(io.BytesIO(page.screenshot(full_page=True)))
        browser.close()
    picture.quantize(64).save(ROOT / "docs" / "docs_page.png", optimize=True)


if __name__ == "__main__":
    main()
