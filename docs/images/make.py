"""Makes the pictures of README and docs from a run: `python -m docs.images.make runs/tiny-llama`."""

from __future__ import annotations

import io
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright

from tests.browser import chromium
from tests.explorer.client import serving

LOCAL = Path(__file__).parent
VIEWS = {
    "explorer-prompt": "#/prompt?prompt=188%2B223&ablate=all",
    "explorer-neuron": "#/neuron?operator=%2B&layer=5&neuron=178&heuristic=result+in+%5B352%2C+402%5D",
    "explorer-circuit": "#/circuit?operator=-",
}


def save(picture: Image.Image, name: str, colours: int = 256) -> None:
    """Save as a small PNG with few colours."""
    picture.convert("RGB").quantize(colours).save(LOCAL / f"{name}.png", optimize=True)


def shot(page: Page, address: str) -> Image.Image:
    page.goto("about:blank")
    page.goto(address)
    page.locator("main:not([aria-busy]) h1").wait_for()
    page.wait_for_timeout(1500)
    return Image.open(io.BytesIO(page.screenshot()))


def main(run: Path) -> None:
    gallery = Image.open(run / "figures" / "heuristic-gallery.png")
    save(gallery.resize((1280, round(1280 * gallery.height / gallery.width))), "heuristic-gallery")
    with serving([run]) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 880})
        for name, view in VIEWS.items():
            save(shot(page, address + view), name)
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
