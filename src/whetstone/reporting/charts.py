"""Charts as inline SVG for HTML pages, made by matplotlib, in colors for light and dark mode.

Note:
    The SVG of matplotlib contains a date and random IDs, so both are fixed: the same run gives the same file. A
    constrained layout takes three times as long as the chart, so it is only used for labels of any length.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

COLORS = ("#3b82c4", "#d9822b", "#2e9e6b", "#b0569e", "#8a8f98", "#c2483f")
_GREY = "#8a8f98"
_MARGINS = (0.7, 0.12, 0.2, 0.42)
"""Margins left, right, top and bottom, in inches: tick labels on the left, a power of ten on top, labels below."""
_STYLE = {
    "font.size": 9,
    "font.family": "sans-serif",
    "svg.fonttype": "none",
    "svg.hashsalt": "whetstone",
    "text.color": _GREY,
    "axes.labelcolor": _GREY,
    "axes.edgecolor": _GREY,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.formatter.limits": (-3, 4),  # longer numbers are written with a power of ten, and fit into the margin
    "grid.alpha": 0.25,
    "grid.color": _GREY,
    "xtick.color": _GREY,
    "ytick.color": _GREY,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
}


@dataclass(frozen=True, slots=True)
class CurvePanel:
    """Curves of one panel of a chart."""

    series: Mapping[str, tuple[Sequence[float], Sequence[float]]]
    """Name → (x, y), both of the same length; the first name labels the y axis."""
    x_label: str
    """Label of the x axis."""
    is_fraction: bool
    """Whether y is a fraction, shown from 0 to 100 %."""
    caption: str
    """Description of the curves in full sentences."""


def plot_curves(
    series: Mapping[str, tuple[Sequence[float], Sequence[float]]], *, x_label: str, percent: bool = False
) -> str:
    """Plot lines over steps as an `<svg>` element: thin for the values, bold for their running mean.

    Args:
        series: Name → (x, y), both of the same length.
        x_label: Label of the x axis.
        percent: Whether y is a fraction, shown from 0 to 100 %.
    """
    with rc_context(_STYLE):
        figure, axes = _with_margins(4.2, 2.3)
        _draw_curves(axes, series, x_label=x_label, percent=percent)
        return _svg(figure)


def plot_panels(panels: Sequence[CurvePanel]) -> bytes:
    """Plot curves below each other, as a PNG image with a white background.

    The same values give the same bytes.

    Args:
        panels: Panels from top to bottom; at least one.
    """
    with rc_context(_STYLE):
        figure = Figure(figsize=(6.4, 2.3 * len(panels)), layout="constrained")
        for axes, panel in zip(figure.subplots(len(panels), squeeze=False)[:, 0], panels, strict=True):
            _draw_curves(axes, panel.series, x_label=panel.x_label, percent=panel.is_fraction)
            axes.set_ylabel(next(iter(panel.series)))
        stream = io.BytesIO()
        figure.savefig(stream, format="png", dpi=110, facecolor="white", metadata={"Software": None})
        return stream.getvalue()


def _draw_curves(
    axes: Axes, series: Mapping[str, tuple[Sequence[float], Sequence[float]]], *, x_label: str, percent: bool
) -> None:
    for color, (name, (x, y)) in zip(COLORS, series.items(), strict=False):
        axes.plot(x, y, color=color, alpha=0.3, linewidth=0.8)
        axes.plot(x, running_mean(y, max(1, len(y) // 20)), color=color, label=name, marker="o" if len(y) == 1 else "")
    axes.set_xlabel(x_label)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if percent:
        axes.set_ylim(-0.02, 1.02)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    if len(series) > 1:
        axes.legend(fontsize=7)


def plot_bars(rows: Sequence[tuple[str, float, tuple[float, float]]]) -> str:
    """Plot horizontal bars of fractions with their intervals, top to bottom, as an `<svg>` element.

    Args:
        rows: (label, fraction, (low, high)).
    """
    with rc_context(_STYLE):
        figure = Figure(figsize=(6.6, 0.45 * len(rows) + 0.5), layout="constrained")
        axes = figure.subplots()
        for place, (_label, share, (low, high)) in enumerate(rows):
            axes.barh(place, share, color=COLORS[place % len(COLORS)], height=0.6)
            axes.plot([low, high], [place, place], color=_GREY, linewidth=2)
            axes.text(min(max(high, share) + 0.02, 1.02), place, f"{share:.1%}", va="center")
        axes.set_yticks(range(len(rows)), [label for label, _, _ in rows])
        axes.invert_yaxis()
        axes.set_xlim(0, 1.12)
        axes.set_xticks([0, 0.25, 0.5, 0.75, 1.0])
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
        axes.grid(axis="y", visible=False)
        return _svg(figure)


def plot_pairs(sides: Mapping[str, Mapping[int, float]], *, x_label: str) -> str:
    """Plot fractions of two sides as an `<svg>` element: a dot per seed, and a line between the two of a seed.

    Args:
        sides: Name → seed → fraction.
        x_label: Label of the x axis.
    """
    with rc_context(_STYLE):
        figure = Figure(figsize=(6.6, 1.5), layout="constrained")
        axes = figure.subplots()
        first, second = sides.values()
        for seed in first.keys() & second.keys():
            axes.plot([100 * first[seed], 100 * second[seed]], [0, 1], color=_GREY, linewidth=0.8)
        for place, (color, of) in enumerate(zip(COLORS, sides.values(), strict=False)):
            axes.plot([100 * share for share in of.values()], [place] * len(of), "o", color=color)
        axes.set_yticks(range(len(sides)), list(sides))
        axes.set_ylim(-0.5, len(sides) - 0.5)
        axes.invert_yaxis()
        axes.set_xlabel(x_label)
        axes.grid(axis="y", visible=False)
        return _svg(figure)


def plot_differences(intervals: Sequence[tuple[float, float, float]], *, x_label: str, most: float = 100.0) -> str:
    """Plot differences with intervals as an `<svg>` element, one line each, in ascending order.

    Intervals that exclude 0 are colored.

    Args:
        intervals: (low, mean, high) of each difference, in any order.
        x_label: Label of the x axis.
        most: Limit of the x axis on both sides; longer intervals are cut.
    """
    with rc_context(_STYLE):
        figure, axes = _with_margins(6.6, 0.8 + 0.055 * len(intervals))
        for place, (low, mean, high) in enumerate(sorted(intervals, key=lambda each: each[1])):
            clear = low > 0 or high < 0
            color = COLORS[0] if clear else _GREY
            axes.plot([max(low, -most), min(high, most)], [place, place], color=color, linewidth=1.0)
            axes.plot([mean], [place], "o", color=color, markersize=2.5)
        axes.axvline(0, color=_GREY, linewidth=0.8)
        axes.set_xlim(-most, most)
        axes.set_yticks([])
        axes.set_xlabel(x_label)
        return _svg(figure)


def running_mean(values: Sequence[float], window: int) -> list[float]:
    """Compute the mean of each value and up to `window` − 1 values before it."""
    return [sum(values[max(0, i + 1 - window) : i + 1]) / min(i + 1, window) for i in range(len(values))]


def _with_margins(width: float, height: float) -> tuple[Figure, Axes]:
    """Create a figure of this size in inches, with margins for tick labels on the left and a label below."""
    figure = Figure(figsize=(width, height))
    left, right, top, below = _MARGINS
    figure.subplots_adjust(left / width, below / height, 1 - right / width, 1 - top / height)
    return figure, figure.subplots()


def _svg(figure: Figure) -> str:
    stream = io.StringIO()
    figure.savefig(stream, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = stream.getvalue()
    return text[text.index("<svg") :]


def plot_bands(
    series: Mapping[str, tuple[Sequence[float], Sequence[float], Sequence[float], Sequence[float]]], *, x_label: str
) -> str:
    """Plot fractions with a band around each, as an `<svg>` element.

    Args:
        series: Name → (x, middle, lowest, highest).
        x_label: Label of the x axis.
    """
    with rc_context(_STYLE):
        figure, axes = _with_margins(7.2, 3.2)
        for place, (name, (x, middle, low, high)) in enumerate(series.items()):
            color = COLORS[place % len(COLORS)]
            axes.fill_between(x, low, high, color=color, alpha=0.15, linewidth=0)
            axes.plot(x, middle, color=color, label=name, linestyle="-" if place < len(COLORS) else "--")
        axes.set_xlabel(x_label)
        axes.set_ylim(-0.02, 1.02)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
        axes.legend(fontsize=7)
        return _svg(figure)


def plot_scatter(
    series: Mapping[str, Sequence[tuple[float, float]]],
    means: Mapping[str, tuple[float, float]],
    *,
    line: Sequence[tuple[float, float]],
    x_label: str,
) -> str:
    """Plot fractions over another quantity as an `<svg>` element.

    Args:
        series: Name → (x, fraction) of each measurement, a small mark.
        means: Name → mean, a large mark.
        line: Points of a dashed line.
        x_label: Label of the x axis.
    """
    with rc_context(_STYLE):
        figure, axes = _with_margins(7.2, 3.2)
        axes.plot([x for x, _ in line], [y for _, y in line], color=_GREY, linestyle="--", linewidth=1)
        for place, (name, points) in enumerate(series.items()):
            color = COLORS[place % len(COLORS)]
            axes.scatter([x for x, _ in points], [y for _, y in points], color=color, s=10, alpha=0.5)
            axes.scatter(*means[name], color=color, s=60, label=name)
        axes.set_xlabel(x_label)
        axes.set_xlim(left=0)
        axes.set_ylim(-0.02, 1.04)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
        axes.legend(fontsize=7)
        return _svg(figure)
