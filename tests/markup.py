"""Reading the HTML that objects show in a notebook."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree


def parsed(shown: Any) -> ElementTree.Element:
    """An object's HTML as a tree; fails on unclosed tags and unescaped characters."""
    return ElementTree.fromstring(f"<div>{shown._repr_html_()}</div>")


def words(shown: Any) -> str:
    """The text of an object's HTML."""
    return " ".join(parsed(shown).itertext())


def tags(shown: Any) -> set[str]:
    return {element.tag for element in parsed(shown).iter()}
