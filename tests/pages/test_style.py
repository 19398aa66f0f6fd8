import re
from pathlib import Path

import pytest

import baton.tasks.pages.html

STYLE = Path(baton.tasks.pages.html.__file__).with_name("style.css").read_text()
LIGHT, DARK = (dict(re.findall(r"--(\w[\w-]*): (#\w{6})", part)) for part in STYLE.split("@media (prefers", 1))

ON_THE_PAGE = [(ink, on) for ink in ("ink", "quiet", "link") for on in ("page", "card")]
MARKS = [("good", "good-soft"), ("bad", "bad-soft"), ("good", "page"), ("bad", "page")]
CODE = [("ink", "soft"), ("ink", "even"), ("ink", "odd")]
LINES = [(line, "card") for line in ("s0", "s1", "s2", "s3")]


def luminance(color: str) -> float:
    """Return WCAG's relative luminance of #rrggbb."""
    parts = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize(("ink", "on"), ON_THE_PAGE + MARKS + CODE + LINES)
@pytest.mark.parametrize("colors", [LIGHT, DARK], ids=["light", "dark"])
def test_all_text_has_the_contrast_that_wcag_aa_asks_for(colors: dict[str, str], ink: str, on: str) -> None:
    low, high = sorted((luminance(colors[ink]), luminance(colors[on])))
    assert (high + 0.05) / (low + 0.05) >= 4.5


def test_light_and_dark_name_the_same_colors() -> None:
    assert LIGHT.keys() == DARK.keys()
