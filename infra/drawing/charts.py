"""Small charts as SVG, 360 px wide: one fills a phone's width, three a desktop's. `aria-label` describes each in words.

Colours are the page's CSS variables --s0 to --s3, so a chart follows light and dark mode. No plotting library: a chart
takes a few milliseconds and 8 kB (matplotlib: 110 ms and 14 kB, behind an import of seconds), in the page's own font.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import pairwise

from markupsafe import Markup

from baton.infra.text import number

Points = list[tuple[float, float]]  # (step, value), by step

WIDTH, HEIGHT = 360, 222
LEFT, RIGHT, TOP, BOTTOM = 54, 12, 50, 40  # margins around the plotted area
_LARGE = (("G", 9), ("M", 6), ("k", 3))
LARGEST = 1e300  # larger values, and NaN, are not drawn
SMALLEST = 1e-30  # values nearer to zero are drawn as zero
MOST_POINTS = 300  # per line; more are averaged in equal bins


def curves(
    title: str,
    lines: dict[str, Points],
    unit: str = "step",
    *,
    log: bool = False,
    reference: str = "",
    breaks: Mapping[str, Collection[float]] | None = None,
) -> Markup:
    """Values over steps: each line smoothed, with its raw data faint behind it.

    `unit` names the horizontal axis. `log` asks for a logarithmic vertical axis: zeros are left out, and
    a curve with negative values stays linear.
    The line called `reference` is drawn as dashed stairs. A line is interrupted before each of its `breaks`, steps by
    name: values after a break are not comparable with those before it. `data-values` has the plotted values, for a
    page's script.
    """
    lines = {name: [point for point in points if abs(point[1]) < LARGEST] for name, points in lines.items()}
    if not any(lines.values()):
        return _svg(title, [], title)
    values = [value for points in lines.values() for _, value in points]
    log = log and min(values) >= 0 and max(values) > 0
    if log:  # a learning rate starts at zero
        lines = {name: [point for point in points if point[1] > 0] for name, points in lines.items()}
    lines = {name: points for name, points in lines.items() if points}
    every = [point for points in lines.values() for point in points]
    values = [value for _, value in every]
    x, x_ticks = _axis([step for step, _ in every], LEFT, WIDTH - RIGHT, tight=True)
    low, high = min(step for step, _ in every), max(step for step, _ in every)
    all_integers = all(float(step).is_integer() for step, _ in every)
    x_ticks = [tick for tick in x_ticks if low <= tick <= high and (float(tick).is_integer() or not all_integers)]
    axis = _log_axis if log else _axis
    y, y_ticks = axis(values, HEIGHT - BOTTOM, TOP)
    written = number if axis is _log_axis else _tick_format(y_ticks)
    parts = [_grid(y, y_ticks, written), _steps(x, x_ticks, unit)]
    pieces = {name: _pieces(points, (breaks or {}).get(name, ())) for name, points in lines.items()}
    for index, (name, of_line) in enumerate(pieces.items()):
        for points in map(_thinned, of_line):
            if name == reference:
                parts.append(_path(_stairs(points), x, y, f"line reference s{index % 4}", points))
                continue
            smooth = _smoothed(points)
            if smooth is not points:
                parts.append(_path(points, x, y, f"line raw s{index % 4}", points))
            parts.append(_path(smooth, x, y, f"line s{index % 4}", points if smooth is points else []))
    parts.append(_legend(list(lines)) if len(lines) > 1 else _last_value(every))
    summary = "; ".join(f"{name} {_course(points)}" for name, points in lines.items())
    alt = f"{title} over {unit}s: {summary}"
    return _svg(title, parts, alt)


def bars(
    title: str,
    values: Sequence[tuple[str, float]],
    written: Callable[[float], str],
    *,
    top: float | None = None,
    ceiling: tuple[str, float] | None = None,
) -> Markup:
    """One bar per model, in the given order, with an optional dashed ceiling."""
    highest = max([value for _, value in values] + ([ceiling[1]] if ceiling else []) + [1e-9])
    y, ticks = _axis([0.0, top or highest], HEIGHT - BOTTOM, TOP + 6, tight=top is not None)
    parts, labels = [_grid(y, ticks, written)], []
    pitch = (WIDTH - LEFT - RIGHT) / len(values)
    wide = min(46.0, pitch * 0.62)
    for index, (name, value) in enumerate(values):
        middle = LEFT + pitch * (index + 0.5)
        parts.append(
            Markup('<rect class="bar s{}" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}" rx="2"/>').format(
                index % 4, middle - wide / 2, y(value), wide, y(0) - y(value)
            )
        )
        labels.append(_label(written(value), middle, y(value) - 5, "value"))
        labels.append(_label(name, middle, HEIGHT - BOTTOM + 16, "tick"))
    summary = ", ".join(f"{name} {written(value)}" for name, value in values)
    if ceiling:
        level = y(ceiling[1])
        parts.append(
            Markup('<line class="ceiling" x1="{}" x2="{}" y1="{:.1f}" y2="{:.1f}"/>').format(
                LEFT, WIDTH - RIGHT, level, level
            )
        )
        parts.append(_label(f"╌ {ceiling[0]} {written(ceiling[1])}", WIDTH - RIGHT, 20, "tick end"))
        summary += f"; {ceiling[0]} {written(ceiling[1])}"
    alt = f"{title}: {summary}"
    return _svg(title, [*parts, *labels], alt)


def _svg(title: str, parts: Sequence[Markup], alt: str) -> Markup:
    head = Markup('<svg class="chart" viewBox="0 0 {} {}" role="img" aria-label="{}">').format(WIDTH, HEIGHT, alt)
    return head + _label(title, 2, 20, "title") + Markup("").join(parts) + Markup("</svg>")


def _label(text: str, x: float, y: float, style: str) -> Markup:
    return Markup('<text class="{}" x="{:.1f}" y="{:.1f}">{}</text>').format(style, x, y, text)


def _path(
    points: Points, x: Callable[[float], float], y: Callable[[float], float], style: str, values: Points
) -> Markup:
    """`values` are those that the page shows for a pointer over the line."""
    data = ";".join(f"{step:.10g} {value:.6g}" for step, value in values)
    if len(points) == 1:
        return Markup('<circle class="{}" cx="{:.1f}" cy="{:.1f}" r="3" data-values="{}"/>').format(
            style.replace("line", "dot"), x(points[0][0]), y(points[0][1]), data
        )
    path = "M" + "L".join(f"{x(step):.1f} {y(value):.1f}" for step, value in points)
    return Markup('<path class="{}" d="{}" data-values="{}"/>').format(style, path, data)


def _pieces(points: Points, breaks: Collection[float]) -> list[Points]:
    """The points between breaks."""
    cuts = [0, *(place for place, (step, _) in enumerate(points) if place and step in breaks), len(points)]
    return [points[start:end] for start, end in pairwise(cuts)]


def _stairs(points: Points) -> Points:
    """Each value held until the next point."""
    if not points:
        return points
    corners = [corner for (_, value), (step, later) in pairwise(points) for corner in ((step, value), (step, later))]
    return [points[0], *corners]


def _grid(y: Callable[[float], float], ticks: list[float], written: Callable[[float], str]) -> Markup:
    lines = [
        Markup('<line class="grid" x1="{}" x2="{}" y1="{:.1f}" y2="{:.1f}"/>').format(
            LEFT, WIDTH - RIGHT, y(tick), y(tick)
        )
        + _label(written(tick), LEFT - 6, y(tick) + 4, "tick end")
        for tick in ticks
    ]
    return Markup("").join(lines)


def _steps(x: Callable[[float], float], ticks: list[float], unit: str) -> Markup:
    labels = [_label(number(tick), x(tick), HEIGHT - BOTTOM + 16, "tick") for tick in ticks]
    return Markup("").join([*labels, _label(f"{unit}s", (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 7, "tick")])


def _last_value(points: Points) -> Markup:
    return _label(number(points[-1][1]), WIDTH - RIGHT, 20, "value end")


def _legend(names: list[str]) -> Markup:
    """Words in the colours of their lines, below the title."""
    spans = Markup('<tspan dx="10"> </tspan>').join(
        Markup('<tspan class="word s{}">{}</tspan>').format(index % 4, name) for index, name in enumerate(names)
    )
    return Markup('<text class="legend" x="2" y="37">{}</text>').format(spans)


def _axis(
    values: Sequence[float], start: float, end: float, *, tight: bool = False
) -> tuple[Callable[[float], float], list[float]]:
    """A linear scale from data to pixels, and its round ticks. `tight`: the axis ends where the data does."""
    low, high = min(values), max(values)
    largest = max(abs(low), abs(high))
    if high - low <= 1e-9 * max(largest, SMALLEST):  # constant, or nearly
        room = largest if largest > SMALLEST else 1.0
        low, high = low - room, high + room
    gap = _round_gap((high - low) / (5 if tight else 4))
    first, last = math.ceil(low / gap - 1e-9), math.floor(high / gap + 1e-9)
    if not tight:
        first, last = math.floor(low / gap + 1e-9), math.ceil(high / gap - 1e-9)
        low, high = first * gap, last * gap

    def scale(value: float) -> float:
        return start + (value - low) / (high - low) * (end - start)

    return scale, [float(f"{tick * gap:.10g}") for tick in range(first, last + 1)]


def _log_axis(values: Sequence[float], start: float, end: float) -> tuple[Callable[[float], float], list[float]]:
    """A logarithmic scale, with ticks at powers of ten and, over few of them, at multiples."""
    low, high = math.log10(min(values)), math.log10(max(values))
    apart = max(1, round((high - low) / 5))
    powers = range(math.floor(low), math.ceil(high) + 1)
    steps = range(1, 10) if high - low < 0.9 else (1, 2, 5) if high - low < 2 else (1,)
    ticks = [float(f"{step}e{power}") for power in powers if power % apart == 0 for step in steps]
    ticks = [tick for tick in ticks if low - 1e-9 <= math.log10(tick) <= high + 1e-9]
    if len(ticks) < 2:  # a narrow range, for which a linear axis has better ticks
        return _axis(values, start, end)

    def scale(value: float) -> float:
        return start + (math.log10(value) - low) / (high - low) * (end - start)

    return scale, ticks


def _tick_format(ticks: list[float]) -> Callable[[float], str]:
    """Return a short format with enough digits to distinguish the ticks."""
    gap = min((b - a for a, b in pairwise(ticks)), default=1.0)
    largest = max(map(abs, ticks))
    finest = math.floor(math.log10(gap) + 1e-9)  # the decimal place of the gap
    unit, power = next((unit, power) for unit, power in _LARGE if largest >= 10**power or unit == "k")
    if 1e5 <= largest < 1e12 and power - finest <= 2:
        return lambda tick: f"{tick / 10**power:.{max(0, power - finest)}f} {unit}"
    if finest >= -4 and largest < 1e5:
        return lambda tick: f"{tick:,.{max(0, -finest)}f}"
    digits = max(1, math.floor(math.log10(largest) + 1e-9) - finest + 1)
    return lambda tick: f"{tick:.{digits}g}"


def _round_gap(gap: float) -> float:
    """The next 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(gap))
    return next(power * step for step in (1, 2, 5, 10) if power * step >= gap * (1 - 1e-9))


def _thinned(points: Points) -> Points:
    if len(points) <= MOST_POINTS:
        return points
    stretch = len(points) / MOST_POINTS
    cuts = [round(index * stretch) for index in range(MOST_POINTS + 1)]
    return [points[0], *(_mean(points[a:b]) for a, b in pairwise(cuts)), points[-1]]


def _mean(points: Points) -> tuple[float, float]:
    return sum(step for step, _ in points) / len(points), sum(value for _, value in points) / len(points)


def _smoothed(points: Points) -> Points:
    """Return the mean over a window around each point, a twelfth of all points wide and narrower towards the ends;
    few points are returned unchanged."""
    widest, last = len(points) // 24, len(points) - 1
    if widest == 0:
        return points
    smooth = []
    for index, (step, _) in enumerate(points):
        reach = max(widest // 4, min(widest, index, last - index))
        smooth.append((step, _mean(points[max(0, index - reach) : index + reach + 1])[1]))
    return smooth


def _course(points: Points) -> str:
    return f"from {number(points[0][1])} to {number(points[-1][1])}"
