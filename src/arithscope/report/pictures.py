"""Figures as embedded images: the smaller of SVG and PNG, and all of them together within a budget of bytes."""

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
SHRINK = 0.8  # factor by which an image is scaled at each step
SMALLEST = 0.05  # scale at which shrinking ends


@dataclass(frozen=True)
class Picture:
    """An image to embed."""

    kind: str
    data: bytes
    width: int  # in CSS pixels
    height: int
    top: float  # where the body lies between title and caption, as shares of the height
    bottom: float
    png: Path  # from which smaller versions are made
    scale: float = 1.0

    @property
    def uri(self) -> str:
        return f"data:image/{self.kind};base64,{base64.b64encode(self.data).decode()}"

    @property
    def geometry(self) -> str:
        """CSS variables with which the style sheet shows the body only: its shape, and how far the image is moved up."""
        height, up = (self.bottom - self.top) * self.height, self.top * self.height / self.width
        return f"--width: {self.width}px; --shape: {self.width} / {height:.1f}; --up: {-100 * up:.2f}%"

    @property
    def embedded_bytes(self) -> int:
        return -(-len(self.data) // 3) * 4


def read_picture(folder: Path, name: str, entry: Mapping[str, Any]) -> Picture:
    """A figure of a run, from its files and its entry in the index."""
    svg, png = (folder / f"{name}.{ending}" for ending in ("svg", "png"))
    png_data = png.read_bytes()
    width, height = (round(n * CSS_DPI / PNG_DPI) for n in struct.unpack(">II", png_data[16:24]))
    kind, data = ("svg+xml", svg.read_bytes()) if svg.stat().st_size < len(png_data) else ("png", png_data)
    top, bottom = entry["body"]
    return Picture(kind, data, width, height, top, bottom, png)


def within(pictures: Mapping[str, Picture], budget: int) -> dict[str, Picture]:
    """The same pictures, the largest ones re-encoded until all of them take at most `budget` bytes."""
    fitted = dict(pictures)
    while sum(picture.embedded_bytes for picture in fitted.values()) > budget:
        shrinkable = [name for name, picture in fitted.items() if picture.scale > SMALLEST]
        if not shrinkable:
            break
        largest = max(shrinkable, key=lambda name: fitted[name].embedded_bytes)
        fitted[largest] = _smaller(fitted[largest])
    return fitted


def _smaller(picture: Picture) -> Picture:
    """With 256 colours first, then with fewer pixels at each step; the old data is kept if that does not help."""
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
