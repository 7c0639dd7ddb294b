"""Figures for a page that carries them itself: of SVG and PNG the smaller, and all together within a budget."""

from __future__ import annotations

import base64
import io
import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from PIL import Image

from arithscope.report.figure_files import PNG_DPI

CSS_DPI = 96
SHRINK = 0.8  # how much smaller an image gets at each step
SMALLEST = 0.05  # of its size; no picture gets smaller than that


@dataclass(frozen=True)
class Picture:
    """An image as it will be embedded. width and height are in CSS pixels; the body, without the title above and the caption
    below, lies between top and bottom (shares of the height). png is what a smaller one can be made from."""

    kind: str
    data: bytes
    width: int
    height: int
    top: float
    bottom: float
    png: Path
    scale: float = 1.0

    @property
    def uri(self) -> str:
        return f"data:image/{self.kind};base64,{base64.b64encode(self.data).decode()}"

    @property
    def embedded_bytes(self) -> int:
        return -(-len(self.data) // 3) * 4


def read_picture(folder: Path, name: str, entry: Mapping[str, Any]) -> Picture:
    """A figure of a run, from its files and what the index says of it."""
    svg, png = (folder / f"{name}.{ending}" for ending in ("svg", "png"))
    drawn = png.read_bytes()
    width, height = (round(n * CSS_DPI / PNG_DPI) for n in struct.unpack(">II", drawn[16:24]))
    kind, data = ("svg+xml", svg.read_bytes()) if svg.stat().st_size < len(drawn) else ("png", drawn)
    top, bottom = entry["body"]
    return Picture(kind, data, width, height, top, bottom, png)


def within(pictures: Mapping[str, Picture], budget: int) -> dict[str, Picture]:
    """The same pictures, the largest ones re-encoded smaller until all together take at most so many bytes."""
    fitted = dict(pictures)
    while sum(picture.embedded_bytes for picture in fitted.values()) > budget:
        shrinkable = [name for name, picture in fitted.items() if picture.scale > SMALLEST]
        if not shrinkable:
            break
        largest = max(shrinkable, key=lambda name: fitted[name].embedded_bytes)
        fitted[largest] = _smaller(fitted[largest])
    return fitted


def _smaller(picture: Picture) -> Picture:
    """With 256 colours first, then step by step with fewer pixels; as it was if that does not help."""
    scale = picture.scale if picture.kind == "svg+xml" else picture.scale * SHRINK
    with Image.open(picture.png) as image:
        size = [max(1, round(n * scale)) for n in image.size]
        small = image.convert("RGB").resize((size[0], size[1]), Image.Resampling.LANCZOS).quantize(256)
    buffer = io.BytesIO()
    small.save(buffer, "PNG", optimize=True)
    data = buffer.getvalue()
    if len(data) < len(picture.data):
        return replace(picture, kind="png", data=data, scale=scale)
    return replace(picture, scale=scale * SHRINK)
