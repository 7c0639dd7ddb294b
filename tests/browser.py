"""A real browser, and a page that must neither log errors nor send requests to other machines."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, Request, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")


def chromium() -> str | None:
    """Path of the browser, or None."""
    return os.environ.get("ARITHSCOPE_BROWSER") or next(filter(None, map(shutil.which, NAMES)), None)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium; skips the test if it is not installed."""
    path = chromium()
    if path is None:
        pytest.skip("no Chromium here: install it (Debian's package chromium), or name it with ARITHSCOPE_BROWSER=PATH")
    with sync_playwright() as playwright:
        options = ["--no-sandbox", "--disable-background-networking", "--disable-component-update"]
        opened = playwright.chromium.launch(executable_path=path, args=options)
        yield opened
        opened.close()


@contextmanager
def watched_page(browser: Browser, width: int, *, scripts: bool = True) -> Iterator[Page]:
    """A page of this width. On exit, it must have logged no errors, sent requests to this machine only, and fit its width."""
    context = browser.new_context(viewport={"width": width, "height": 800}, java_script_enabled=scripts)
    problems: list[str] = []
    urls: list[str] = []
    context.on("request", lambda request: urls.append(request.url))

    def failed(request: Request) -> None:
        if "ERR_ABORTED" not in str(request.failure):  # aborted because the browser left the page
            problems.append(f"failed: {request.url} {request.failure}")

    context.on("requestfailed", failed)
    page = context.new_page()
    page.on("console", lambda message: problems.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.set_default_timeout(30_000)
    yield page
    content_width = page.evaluate("document.documentElement.scrollWidth") if scripts else width
    context.close()
    assert problems == [], problems
    remote = [url for url in urls if urlsplit(url).scheme not in ("data", "blob", "file", "about")]
    assert {urlsplit(url).hostname for url in remote} <= {"127.0.0.1"}
    assert content_width <= width
