"""HTML from plain values: whatever is put into an element is escaped, unless it is an element itself."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

_EMPTY = {"br", "img", "meta"}  # elements without an end tag


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def element(tag: str, /, *children: str, **attributes: str | int | None) -> Markup:
    """An element. Children and values of attributes are escaped; names in Python that HTML cannot share have an underscore
    behind (class_), and one within stands for a hyphen. An attribute that is None is left out."""
    named = [(key.rstrip("_").replace("_", "-"), value) for key, value in attributes.items() if value is not None]
    start = "".join([tag, *(f' {key}="{escape(str(value))}"' for key, value in named)])
    return Markup(f"<{start}>" if tag in _EMPTY else f"<{start}>{together(*children)}</{tag}>")


def together(*children: str) -> Markup:
    """Texts and elements, one behind the other."""
    return Markup("".join(child if isinstance(child, Markup) else escape(child) for child in children))


def table(caption: str, header: Sequence[str], rows: Sequence[Sequence[str]], name: str | None = None) -> Markup:
    """A table in a box of its own, in which it scrolls if it is wide. The first cell of each row is its header."""
    head = element("tr", *(element("th", cell, scope="col") for cell in header))
    body = [
        element("tr", element("th", first, scope="row"), *(element("td", cell) for cell in rest))
        for first, *rest in rows
    ]
    named = element("caption", element("span", caption))
    inner = element("table", named, element("thead", head), element("tbody", *body), class_=name)
    return element("div", inner, class_="scroll", tabindex=0, role="region", aria_label=caption)
