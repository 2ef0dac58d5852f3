"""Small charts as SVG text, readable on light and dark pages, without a library or a network."""

import math
from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path

COLOURS = ("#3b82c4", "#e0a030", "#c2574f", "#8a63b0", "#9aa5b1", "#4a9a6a")
WIDTH, HEIGHT, LEFT, TOP = 640, 300, 64, 48
STYLE = (
    "text{font:12px sans-serif;fill:#333}.axis{stroke:#888;fill:none}@media(prefers-color-scheme:dark){text{fill:#ddd}}"
)

Point = tuple[float, float]


def line_chart(title: str, x_label: str, y_label: str, lines: Mapping[str, Sequence[Point]], log_y: bool = True) -> str:
    """Lines over a logarithmic x axis; ticks are the x values of the first line."""
    points = [point for line in lines.values() for point in line]
    to_x = _scale([x for x, _ in points], LEFT, WIDTH - 150, log=True)
    to_y = _scale([y for _, y in points], HEIGHT - 48, TOP, log=log_y)
    parts = [_axis(title, x_label, y_label)]
    for x, _ in next(iter(lines.values())):
        parts.append(_text(to_x(x), HEIGHT - 30, f"{x:g}", "middle"))
    lowest, highest = min(y for _, y in points), max(y for _, y in points)
    for y in (lowest, (lowest * highest) ** 0.5 if log_y else (lowest + highest) / 2, highest):
        parts.append(_text(LEFT - 6, to_y(y) + 4, f"{y:.3g}", "end"))
    for number, (name, line) in enumerate(lines.items()):
        colour = COLOURS[number % len(COLOURS)]
        path = " ".join(f"{to_x(x):.1f},{to_y(y):.1f}" for x, y in line)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{to_x(x):.1f}" cy="{to_y(y):.1f}" r="3" fill="{colour}"/>' for x, y in line]
        parts.append(_key(number, name, colour))
    return _svg(HEIGHT, parts)


def one_below_the_other(charts: Sequence[str]) -> str:
    """Line charts as one picture."""
    placed = []
    for number, chart in enumerate(charts):
        placed.append(chart.replace("<svg ", f'<svg y="{number * HEIGHT}" height="{HEIGHT}" '))
    return _svg(HEIGHT * len(charts), placed)


def stacked_bars(title: str, parts_of: Mapping[str, Sequence[float]], names: Sequence[str]) -> str:
    """One horizontal bar of shares (0 to 1) for each key of `parts_of`, in the order and colours of `names`."""
    height = TOP + 34 * len(parts_of) + 40
    parts = [_text(8, 22, title, "start", bold=True)]
    for row, (label, shares) in enumerate(parts_of.items()):
        x, y = 190.0, TOP + 34 * row
        parts.append(_text(182, y + 17, label, "end"))
        for number, share in enumerate(shares):
            width = (WIDTH - 200) * share
            parts.append(f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="24" fill="{COLOURS[number]}"/>')
            if share >= 0.06:
                inside = f'<text x="{x + width / 2:.1f}" y="{y + 16}" text-anchor="middle" style="fill:#fff">'
                parts.append(f"{inside}{share:.0%}</text>")
            x += width
    step = (WIDTH - 40) / len(names)
    for number, name in enumerate(names):
        parts.append(
            f'<rect x="{20 + step * number}" y="{height - 26}" width="12" height="12" fill="{COLOURS[number]}"/>'
        )
        parts.append(_text(36 + step * number, height - 15, name, "start"))
    return _svg(height, parts)


def write_plot(path: Path, svg: str) -> None:
    """Write a chart and say so."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(svg)
    print(f"plot      {path}")


def _scale(values: Sequence[float], start: float, end: float, log: bool) -> Callable[[float], float]:
    measure = math.log if log else float
    low, high = measure(min(values)), measure(max(values))
    return lambda value: start + (end - start) * (measure(value) - low) / ((high - low) or 1)


def _axis(title: str, x_label: str, y_label: str) -> str:
    bottom = HEIGHT - 48
    return (
        f'<path class="axis" d="M{LEFT} {TOP}V{bottom}H{WIDTH - 150}"/>'
        + _text(8, 18, title, "start", bold=True)
        + _text((LEFT + WIDTH - 150) / 2, HEIGHT - 10, x_label, "middle")
        + _text(8, TOP - 6, y_label, "start")
    )


def _key(number: int, name: str, colour: str) -> str:
    y = TOP + 22 * number
    return f'<rect x="{WIDTH - 138}" y="{y}" width="12" height="12" fill="{colour}"/>' + _text(
        WIDTH - 122, y + 10, name, "start"
    )


def _text(x: float, y: float, text: str, anchor: str, bold: bool = False) -> str:
    weight = ' style="font-weight:bold"' if bold else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{weight}>{escape(text)}</text>'


def _svg(height: int, parts: list[str]) -> str:
    body = "\n".join(parts)
    opening = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">'
    return f"{opening}\n<style>{STYLE}</style>\n{body}\n</svg>\n"
