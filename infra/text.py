"""Format numbers, units and durations for display."""

import re
from typing import Any

_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


def uncoloured(text: str) -> str:
    """A text without a terminal's colours."""
    return _COLOUR.sub("", text)


def clause(text: object) -> str:
    """A text, such as an error's, without its final full stop, so that a message can continue after it."""
    return str(text).rstrip().removesuffix(".")


def number(value: float) -> str:
    """A short readable number: 12,345 · 0.0312 · 1.2e-06."""
    if isinstance(value, int) or (float(value).is_integer() and abs(value) < 1e15):
        return f"{int(value):,}"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def _rounded(value: float, digits: int) -> str:
    """With so many decimals; a smaller value with significant digits, unless it may be a rounding error."""
    return f"{value:.3g}" if 1e-9 < abs(value) < 10**-digits else f"{value:.{digits}f}"


def share(value: float) -> str:
    """A fraction as a percentage."""
    return f"{_rounded(100 * value, 1)} %"


def points(difference: float) -> str:
    """A difference of two fractions in percentage points, with its sign."""
    return f"{'+' if difference >= 0 else '−'}{_rounded(abs(100 * difference), 1)} points"


def measure(value: float, unit: str) -> str:
    """A metric's value in its unit: 57.3 % · 1.503 · 0.00041 · 12,345."""
    if unit == "share":
        return share(value)
    return _rounded(value, 3) if unit or (value % 1 and abs(value) < 1000) else number(value)


def change(difference: float, unit: str) -> str:
    """A difference of two values of a metric, with its sign."""
    if unit == "share":
        return points(difference)
    shown = measure(abs(difference), unit)
    return f"{'+' if difference >= 0 else '−'}{shown}"


def plus_minus(shown: str, error: float | None, unit: str) -> str:
    """A value or a difference as it is shown, and its uncertainty: 57.3 % ± 1.0."""
    if error is None:
        return shown
    return f"{shown} ± {_rounded(100 * error, 1) if unit == 'share' else _rounded(error, 3)}"


def size(count: float) -> str:
    """Bytes: 10.5 MB."""
    for unit, digits in (("B", 0), ("kB", 1), ("MB", 1), ("GB", 1)):
        if round(count, digits) < 1000:  # as it is shown
            return f"{count:,.{digits}f} {unit}"
        count /= 1000
    return f"{count:,.1f} TB"


def count(value: float) -> str:
    """A large count, such as parameters or tokens: 512,000 · 5.8 M · 30.5 B · 15.0 T."""
    if round(value) < 1e6:
        return f"{value:,.0f}"
    for unit in ("M", "B"):
        value /= 1000 if unit == "B" else 1e6
        if round(value, 1) < 1000:  # as it is shown
            return f"{value:.1f} {unit}"
    return f"{value / 1000:,.1f} T"


def gigabytes(count: float) -> str:
    """Bytes of memory, in GB as in the fields of recipes, with three digits: 0.0231 GB · 79.1 GB · 1,230 GB."""
    return f"{count / 1e9:.3g} GB" if round(count / 1e9) < 1000 else f"{count / 1e9:,.0f} GB"


def duration(seconds: float) -> str:
    """A measured time: 41.2 s · 3 min 05 s · 2 h 10 min."""
    if round(seconds, 1) < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def brief(seconds: float) -> str:
    """An estimated or rounded time: 4 s · 5 min · 2.1 h · 3.4 d."""
    if round(seconds) < 100:
        return f"{seconds:.0f} s"
    if round(seconds / 60) < 60:
        return f"{seconds / 60:.0f} min"
    hours = round(seconds / 3600, 1)
    return f"{hours:.1f} h" if hours < 24 else f"{seconds / 86400:.1f} d"


def value(item: Any) -> str:
    """Any fact of a manifest."""
    if isinstance(item, bool) or item is None:
        return str(item)
    if isinstance(item, int | float):
        return number(item)
    if isinstance(item, dict):
        return ", ".join(f"{name} {value(part)}" for name, part in item.items())
    return str(item)


def words(name: str) -> str:
    """A field's name as words."""
    return name.replace("_", " ")


def in_yaml(value: Any) -> str:
    """On one line, as in a recipe: {tensor: 2, sequence_parallel: true}."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name}: {in_yaml(item)}" for name, item in value.items()) + "}"
    return str(value).lower() if isinstance(value, bool) else str(value)


def fenced(text: str, language: str = "") -> str:
    """A Markdown code block whose fence is longer than any run of backticks in the text."""
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence}{language}\n{text}\n{fence}"


MOST = 2000  # characters of a user's or a program's text in a message
# what a terminal or a page obeys instead of showing it: control characters, but for line ends and tabs, and those that
# turn the direction of writing (Unicode's Bidi_Control)
_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def escaped(text: str) -> str:
    """A text with Python's escapes for what a terminal would obey."""
    return _OBEYED.sub(lambda match: ascii(match[0])[1:-1], text)


def shown(text: str, most: int = MOST) -> str:
    """Foreign text for a message or a log: escaped, and cut to `most` characters."""
    cut = text if len(text) <= most else f"{text[:most]}… ({len(text):,} characters)"
    return escaped(cut)


def encodable(text: str) -> str:
    """Replace what UTF-8 cannot encode (lone surrogates, which JSON can hold) by question marks."""
    return str(text).encode("utf-8", "replace").decode()
