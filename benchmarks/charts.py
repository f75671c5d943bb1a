"""Charts as SVG, written by hand: a few lines and bars need no library."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from math import log10

_WIDTH, _HEIGHT, _LEFT, _TOP, _BOTTOM = 720, 320, 60, 40, 50
_COLOURS = ("#2563eb", "#f59e0b", "#10b981", "#6b7280")


@dataclass(frozen=True, slots=True)
class Series:
    """One line of a chart, or one colour of bars."""

    name: str
    values: Sequence[float]


def bars(title: str, labels: Sequence[str], series: Sequence[Series]) -> str:
    """Draw groups of bars, one group per label."""
    top = max(value for s in series for value in s.values)
    group = (_WIDTH - _LEFT) / len(labels)
    width = group * 0.8 / len(series)
    parts = []
    for index, s in enumerate(series):
        for number, value in enumerate(s.values):
            x, y = _LEFT + number * group + group * 0.1 + index * width, _y(value, top)
            height = _HEIGHT - _BOTTOM - y
            parts.append(
                f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"'
                f' fill="{_COLOURS[index]}"><title>{escape(s.name)}: {value:,.4g}</title></rect>'
            )
    middles = [_LEFT + (number + 0.5) * group for number in range(len(labels))]
    return _frame(title, top, list(zip(middles, labels, strict=True)), series, parts)


def lines(title: str, xs: Sequence[float], series: Sequence[Series]) -> str:
    """Draw lines over a logarithmic axis."""
    top = max(value for s in series for value in s.values) * 1.2
    low, high = log10(min(xs)), log10(max(xs))
    at = [_LEFT + 30 + (log10(x) - low) / (high - low) * (_WIDTH - _LEFT - 60) for x in xs]
    parts = []
    for index, s in enumerate(series):
        points = [(x, _y(value, top)) for x, value in zip(at, s.values, strict=True)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        colour = _COLOURS[index]
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in points]
    return _frame(
        title, top, [(x, f"{v:,.0f}") for x, v in zip(at, xs, strict=True)], series, parts
    )


def _y(value: float, top: float) -> float:
    return _HEIGHT - _BOTTOM - value / top * (_HEIGHT - _BOTTOM - _TOP)


def _frame(
    title: str,
    top: float,
    labels: Sequence[tuple[float, str]],
    series: Sequence[Series],
    parts: Sequence[str],
) -> str:
    """Put title, axes and legend around what is drawn."""
    text = [f'<text x="{_LEFT}" y="20" font-weight="bold">{escape(title)}</text>']
    for share in (0, 0.25, 0.5, 0.75, 1):
        y = _y(top * share, top)
        text.append(f'<line x1="{_LEFT}" x2="{_WIDTH}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
        text.append(
            f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{top * share:,.3g}</text>'
        )
    foot = _HEIGHT - _BOTTOM + 18
    text += [
        f'<text x="{x:.1f}" y="{foot}" text-anchor="middle">{escape(label)}</text>'
        for x, label in labels
    ]
    for index, s in enumerate(series):
        x = _LEFT + index * 190
        text.append(
            f'<rect x="{x}" y="{_HEIGHT - 20}" width="10" height="10" fill="{_COLOURS[index]}"/>'
        )
        text.append(f'<text x="{x + 15}" y="{_HEIGHT - 11}">{escape(s.name)}</text>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}"'
        f' font-family="sans-serif" font-size="11">\n'
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>\n'
        + "\n".join([*text, *parts])
        + "\n</svg>\n"
    )
