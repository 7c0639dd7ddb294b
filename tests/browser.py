"""A real browser for tests, and what it must never do: ask another machine for anything, or complain on its console."""

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
    """Where the browser is."""
    return os.environ.get("ARITHSCOPE_BROWSER") or next(filter(None, map(shutil.which, NAMES)), None)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium, or skip with a word on how to get it."""
    found = chromium()
    if found is None:
        pytest.skip("no Chromium here: install it (Debian's package chromium), or name it with ARITHSCOPE_BROWSER=PATH")
    with sync_playwright() as playwright:
        options = ["--no-sandbox", "--disable-background-networking", "--disable-component-update"]
        opened = playwright.chromium.launch(executable_path=found, args=options)
        yield opened
        opened.close()


@contextmanager
def watched_page(browser: Browser, width: int, *, scripts: bool = True) -> Iterator[Page]:
    """A page of some width. At the end it must have been quiet, have asked nobody but this machine, and fit its width."""
    context = browser.new_context(viewport={"width": width, "height": 800}, java_script_enabled=scripts)
    said: list[str] = []
    asked: list[str] = []
    context.on("request", lambda request: asked.append(request.url))

    def failed(request: Request) -> None:
        if "ERR_ABORTED" not in str(request.failure):  # the page was left before the answer came
            said.append(f"failed: {request.url} {request.failure}")

    context.on("requestfailed", failed)
    page = context.new_page()
    page.on("console", lambda message: said.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: said.append(str(error)))
    page.set_default_timeout(30_000)
    yield page
    wide = page.evaluate("document.documentElement.scrollWidth") if scripts else width
    context.close()
    assert said == [], said
    elsewhere = [url for url in asked if urlsplit(url).scheme not in ("data", "blob", "file", "about")]
    assert {urlsplit(url).hostname for url in elsewhere} <= {"127.0.0.1"}
    assert wide <= width
