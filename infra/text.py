"""Format numbers, units and durations for display."""

import re
from typing import Any


def number(value: float) -> str:
    """A short readable number: 12,345 · 0.0312 · 1.2e-06."""
    if isinstance(value, int) or (float(value).is_integer() and abs(value) < 1e15):
        return f"{int(value):,}"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def share(value: float) -> str:
    """A fraction as a percentage."""
    return f"{100 * value:.1f} %"


def points(difference: float) -> str:
    """A difference of two fractions in percentage points, with its sign."""
    return f"{'+' if difference >= 0 else '−'}{abs(100 * difference):.1f} points"


def measure(value: float, unit: str) -> str:
    """A metric's value in its unit: 57.3 % · 1.503 · 12,345."""
    if unit == "share":
        return share(value)
    return f"{value:.3f}" if unit or (value % 1 and abs(value) < 1000) else number(value)


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
    return f"{shown} ± {100 * error:.1f}" if unit == "share" else f"{shown} ± {error:.3f}"


def size(count: float) -> str:
    """Bytes: 10.5 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:,.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"
        count /= 1000
    return f"{count:,.1f} TB"


def count(value: float) -> str:
    """A large count: 5.8 M."""
    for unit, scale in (("G", 1e9), ("M", 1e6)):
        if value >= scale:
            return f"{value / scale:,.1f} {unit}"
    return f"{value:,.0f}"


def duration(seconds: float) -> str:
    """41.2 s · 3 min 05 s · 2 h 10 min."""
    if round(seconds, 1) < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def brief(seconds: float) -> str:
    """4 s · 5 min · 2.1 h · 3.4 d."""
    for unit, length in (("d", 86400), ("h", 3600)):
        if seconds >= length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds / 60:.0f} min" if seconds >= 100 else f"{seconds:.0f} s"


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


def fenced(text: str, language: str = "") -> str:
    """A Markdown code block whose fence is longer than any run of backticks in the text."""
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence}{language}\n{text}\n{fence}"


def encodable(text: str) -> str:
    """Replace what UTF-8 cannot encode (lone surrogates, which JSON can hold) by question marks."""
    return str(text).encode("utf-8", "replace").decode()
