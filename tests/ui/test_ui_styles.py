"""The style sheet: its colours have the contrast that WCAG 2.2 asks for (level AA), in light and in dark."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import derive

CSS = (Path(derive.__file__).parent / "ui/static/app.css").read_text(encoding="utf-8")
LIGHT, DARK = (dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", part)) for part in CSS.split("@media", 2)[:2])
TEXTS = [
    *((text, back) for text in ("text", "soft", "link") for back in ("back", "panel")),
    *((kind, f"{kind}-back") for kind in ("bad", "warn", "good")),
    *((kind, "back") for kind in ("bad", "warn", "good")),
]


def luminance(colour: str) -> float:
    """Return the relative luminance of a colour, by WCAG."""
    parts = [int(colour[index : index + 2], 16) / 255 for index in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(first: str, second: str) -> float:
    dark, light = sorted((luminance(first), luminance(second)))
    return (light + 0.05) / (dark + 0.05)


def test_contrast_is_that_of_the_standard() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#767676", "#ffffff") == pytest.approx(4.54, abs=0.01)


@pytest.mark.parametrize("colours", [LIGHT, DARK], ids=["light", "dark"])
def test_texts_have_enough_contrast(colours: dict[str, str]) -> None:
    assert colours.keys() >= {name for pair in TEXTS for name in pair} | {"focus"}
    assert [pair for pair in TEXTS if contrast(*(colours[name] for name in pair)) < 4.5] == []
    assert contrast(colours["focus"], colours["back"]) >= 3
