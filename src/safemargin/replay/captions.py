"""Captions and curves on pictures: what clips and contact sheets show besides the game."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import matplotlib
import numpy as np
from PIL import Image, ImageDraw, ImageFont

from safemargin.core.records import Floats
from safemargin.replay.pictures import Picture

HEIGHT = 420
"""Height of a clip's picture; small ones are enlarged by whole factors to keep pixels sharp."""

STRIP = 118
PAPER, INK, QUIET, ALARM, LINE = "#16181b", "#f0f0ee", "#9aa0a8", "#ff6b5e", "#7fb0ff"


@dataclass(kw_only=True, eq=False)
class ClipPainter:
    """Draws the pictures of one clip: the game, with proxy and margin below."""

    title: str
    proxies: Floats  # [steps of the clip], perhaps one less than pictures
    margins: Sequence[str] | None  # as many, or None
    first_step: int
    moment: int
    size: tuple[int, int]
    """Height and width of the pictures."""

    def __post_init__(self) -> None:
        scale = HEIGHT / self.size[0]
        scale = scale if scale <= 1 else max(1, round(scale))
        self.picture_size = _even(self.size[1] * scale), _even(self.size[0] * scale)
        self.width = max(self.picture_size[0], 440)

    def paint(self, picture: Picture, step: int) -> Picture:
        """Return one picture of the clip."""
        width, (picture_width, picture_height) = self.width, self.picture_size
        sheet = Image.new("RGB", (width, picture_height + STRIP), PAPER)
        sheet.paste(enlarge(picture, self.picture_size), ((width - picture_width) // 2, 0))
        ink = ImageDraw.Draw(sheet)
        here = min(step - self.first_step, len(self.proxies) - 1)
        top = picture_height + 10
        ink.text((12, top), self.title.format(step=f"{step:,}"), font=font(13), fill=INK)
        text = f"proxy {self.proxies[here]:.3g}"
        if self.margins is not None:
            text = f"margin {self.margins[here]}   {text}"
        at_moment = step == self.moment
        colour = ALARM if at_moment and not self._unknown else INK if at_moment else QUIET
        ink.text((width - 12, top), text, font=font(13, bold=at_moment), fill=colour, anchor="ra")
        self._draw_curve(ink, picture_height + 40, here)
        if at_moment:
            outline = QUIET if self._unknown else ALARM
            ink.rectangle((0, 0, width - 1, picture_height - 1), outline=outline, width=4)
        return np.asarray(sheet)

    @property
    def _unknown(self) -> bool:
        """Whether the moment lies above every measured proxy, so that nothing is known."""
        return self.margins is not None and self.margins[self.moment - self.first_step] == "?"

    def _draw_curve(self, ink: ImageDraw.ImageDraw, top: int, here: int) -> None:
        left, right, bottom = 12, self.width - 12, top + STRIP - 56
        low, high = self.proxies.min(), self.proxies.max()
        x = np.linspace(left, right, len(self.proxies))
        y = bottom - (self.proxies - low) / ((high - low) or 1.0) * (bottom - top)
        points = list(zip(x.tolist(), y.tolist(), strict=True))
        if len(points) > 1:
            ink.line(points, fill="#3d444d", width=2)
            ink.line(points[: here + 1], fill=LINE, width=2)
        moment_x, moment_y = points[min(self.moment - self.first_step, len(points) - 1)]
        spot = moment_x - 4, moment_y - 4, moment_x + 4, moment_y + 4
        ink.ellipse(spot, outline=ALARM, width=2)
        ink.line((x[here], top - 2, x[here], bottom + 2), fill=INK, width=1)


def contact_sheet(stills: list[tuple[Picture, str]], *, columns: int = 5) -> Image.Image:
    """Return one picture of all moments, each with its caption."""
    columns = min(columns, len(stills))
    cell, line = 240, 18
    rows = math.ceil(len(stills) / columns)
    smalls = [_fitting(picture, cell) for picture, _ in stills]
    high = max(small.height for small in smalls)
    caption = 8 + line * max(text.count("\n") + 1 for _, text in stills)
    sheet = Image.new("RGB", (columns * (cell + 12) + 12, rows * (high + caption + 12) + 12), PAPER)
    ink = ImageDraw.Draw(sheet)
    for index, (small, (_, text)) in enumerate(zip(smalls, stills, strict=True)):
        x = 12 + index % columns * (cell + 12)
        y = 12 + index // columns * (high + caption + 12)
        sheet.paste(small, (x + (cell - small.width) // 2, y + high - small.height))
        ink.multiline_text((x, y + high + 4), f"{index + 1}. {text}", font=font(13), fill=INK)
    return sheet


def _fitting(picture: Picture, cell: int) -> Image.Image:
    height, width = picture.shape[:2]
    factor = min(cell / width, cell / height)
    return enlarge(picture, (round(width * factor), round(height * factor)))


def enlarge(picture: Picture, size: tuple[int, int]) -> Image.Image:
    """Resize a picture, with hard edges when it grows."""
    grows = size[0] >= picture.shape[1]
    method = Image.Resampling.NEAREST if grows else Image.Resampling.LANCZOS
    return Image.fromarray(picture).resize(size, method)


@cache
def font(size: int, *, bold: bool = False) -> ImageFont.FreeTypeFont:
    """Return a font that comes with matplotlib, so that it is always there."""
    name = "DejaVuSans-Bold.ttf" if bold else "DejaVuSans.ttf"
    return ImageFont.truetype(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / name, size)


def _even(length: float) -> int:
    return 2 * round(length / 2)
