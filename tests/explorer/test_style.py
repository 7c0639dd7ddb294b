"""Text contrast in the light and the dark scheme, as defined by the Web Content Accessibility Guidelines."""

from __future__ import annotations

import re
from itertools import product

import pytest

from arithscope.explorer.server import static_files

MIN_CONTRAST = 4.5  # of text (level AA)
TEXT = ("ink", "muted", "accent", "good", "bad", "plus", "minus", "times", "divide", "operator")


def palettes() -> dict[str, dict[str, str]]:
    """Colours of both schemes; the dark one overrides some of the light one."""
    css = static_files()["style.css"].decode()
    light, dark = (
        dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6});", block)) for block in re.findall(r":root \{(.*?)\}", css, re.S)
    )
    return {"light": light, "dark": light | dark}


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
    return sum(weight * x for weight, x in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_contrast_of_known_colours() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize(("scheme", "text"), list(product(("light", "dark"), TEXT)))
def test_text_contrast(scheme: str, text: str) -> None:
    colours = palettes()[scheme]
    for background in ("panel", "background"):
        assert contrast(colours[text], colours[background]) >= MIN_CONTRAST, background


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_button_contrast(scheme: str) -> None:
    colours = palettes()[scheme]
    assert contrast(colours["accent-ink"], colours["accent"]) >= MIN_CONTRAST
    assert contrast(colours["ink"], colours["empty"]) >= MIN_CONTRAST
