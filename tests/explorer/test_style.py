"""The page's colours can be read: contrast as the Web Content Accessibility Guidelines define it, in light and dark."""

from __future__ import annotations

import re
from itertools import product

import pytest

from arithscope.explorer.server import static_files

LEAST = 4.5  # of text (level AA)
TEXT = ("ink", "muted", "accent", "good", "bad", "plus", "minus", "times", "divide", "operator")


def palettes() -> dict[str, dict[str, str]]:
    """The colours of both schemes; the dark one changes those of the light one."""
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


def test_contrast_is_measured_as_defined() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize(("scheme", "text"), list(product(("light", "dark"), TEXT)))
def test_text_can_be_read(scheme: str, text: str) -> None:
    colours = palettes()[scheme]
    for ground in ("panel", "paper"):
        assert contrast(colours[text], colours[ground]) >= LEAST, ground


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_buttons_can_be_read(scheme: str) -> None:
    colours = palettes()[scheme]
    assert contrast(colours["accent-ink"], colours["accent"]) >= LEAST
    assert contrast(colours["ink"], colours["nothing"]) >= LEAST
