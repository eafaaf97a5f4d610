"""The frame of all pages: contrast of its colours in light and dark, and scripts and styles that the policy allows."""

from __future__ import annotations

import re
from itertools import product

import pytest

from include.monitor.web.pages import FOLDER, STATIC

AA = 4.5
"""Contrast that WCAG 2 asks of text at level AA."""

CSS = (STATIC / "frame.css").read_text()
LIGHT, DARK = (
    dict(re.findall(r"--([\w-]+): (#\w{6})", part)) for part in CSS.split("@media (prefers-color-scheme: dark)", 1)
)
PAIRS = [
    *product(("ink", "soft", "link", "good", "bad", "open"), ("paper", "sheet")),
    *product(("ink", "soft", "link"), ("wash",)),
    *((tone, f"{tone}-wash") for tone in ("good", "bad", "open")),
]


def luminance(colour: str) -> float:
    channels = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("colours", [LIGHT, DARK], ids=["light", "dark"])
@pytest.mark.parametrize(("text", "ground"), PAIRS)
def test_text_stands_out_when_colours_are_compared(colours: dict[str, str], text: str, ground: str) -> None:
    darker, lighter = sorted((luminance(colours[text]), luminance(colours[ground])))
    assert (lighter + 0.05) / (darker + 0.05) >= AA


@pytest.mark.parametrize("template", sorted((FOLDER / "templates").glob("*.html")), ids=lambda path: path.name)
def test_template_holds_no_script_no_style_and_no_unescaped_value_when_it_is_read(template: object) -> None:
    text = (FOLDER / "templates" / str(template)).read_text()
    assert not re.search(r"<script(?![^>]* src=)|<style|\sstyle=|\son\w+=|\|\s*safe|autoescape", text)
    assert "://" not in text


@pytest.mark.parametrize("script", sorted(STATIC.glob("*.js")), ids=lambda path: path.name)
def test_script_makes_neither_markup_nor_code_of_texts_when_it_is_read(script: object) -> None:
    text = (STATIC / str(script)).read_text()
    assert not re.search(r"innerHTML|outerHTML\s*=[^=]|insertAdjacentHTML|document\.write|\beval\b|new Function", text)
