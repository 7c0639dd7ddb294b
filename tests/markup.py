"""Reading the HTML that objects show in a notebook."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree


def parsed(shown: Any) -> ElementTree.Element:
    """What an object shows, as a tree; a tag that is not closed, or a sign that is not escaped, is an error."""
    return ElementTree.fromstring(f"<div>{shown._repr_html_()}</div>")


def words(shown: Any) -> str:
    """Its text alone, as a person reads it."""
    return " ".join(parsed(shown).itertext())


def tags(shown: Any) -> set[str]:
    return {element.tag for element in parsed(shown).iter()}
