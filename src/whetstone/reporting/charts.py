"""How does a curve get into a page that stands alone? Drawn by matplotlib as SVG, in colours for light and dark.

Easy to get wrong: matplotlib's SVG carries a date and random ids, so the same run would give another file each time.
And a layout that is found by drawing takes three times as long as the picture: only labels of any length are worth it.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

COLOURS = ("#3b82c4", "#d9822b", "#2e9e6b", "#b0569e", "#8a8f98", "#c2483f")
_GREY = "#8a8f98"
_MARGINS = (0.7, 0.12, 0.2, 0.42)
"""Left, right, top and below, in inches: numbers on the left, a power of ten on top, numbers and a label below."""
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


def curves(
    series: Mapping[str, tuple[Sequence[float], Sequence[float]]], *, x_label: str, percent: bool = False
) -> str:
    """Lines over steps as an `<svg>` element: a thin one of what was measured, a bold one of its running mean.

    Args:
        series: Name → (x, y), both the same length.
        percent: y is a share, shown from 0 to 100 %.
    """
    with rc_context(_STYLE):
        figure, axes = _with_margins(4.2, 2.3)
        for colour, (name, (x, y)) in zip(COLOURS, series.items(), strict=False):
            axes.plot(x, y, color=colour, alpha=0.3, linewidth=0.8)
            axes.plot(x, running_mean(y, max(1, len(y) // 20)), color=colour, label=name)
        axes.set_xlabel(x_label)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        if percent:
            axes.set_ylim(-0.02, 1.02)
            axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
        if len(series) > 1:
            axes.legend(fontsize=7)
        return _svg(figure)


def bars(rows: Sequence[tuple[str, float, tuple[float, float]]]) -> str:
    """Horizontal bars of shares with their intervals, top to bottom, as an `<svg>` element.

    Args:
        rows: (label, share, (low, high)).
    """
    with rc_context(_STYLE):
        figure = Figure(figsize=(6.6, 0.45 * len(rows) + 0.5), layout="constrained")
        axes = figure.subplots()
        for place, (_label, share, (low, high)) in enumerate(rows):
            axes.barh(place, share, color=COLOURS[place % len(COLOURS)], height=0.6)
            axes.plot([low, high], [place, place], color=_GREY, linewidth=2)
            axes.text(min(max(high, share) + 0.02, 1.02), place, f"{share:.1%}", va="center")
        axes.set_yticks(range(len(rows)), [label for label, _, _ in rows])
        axes.invert_yaxis()
        axes.set_xlim(0, 1.12)
        axes.set_xticks([0, 0.25, 0.5, 0.75, 1.0])
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
        axes.grid(axis="y", visible=False)
        return _svg(figure)


def pairs(sides: Mapping[str, Mapping[int, float]], *, x_label: str) -> str:
    """Shares of two sides as an `<svg>` element: a dot a seed, and a line between both of one seed.

    Args:
        sides: Name → seed → share.
    """
    with rc_context(_STYLE):
        figure = Figure(figsize=(6.6, 1.5), layout="constrained")
        axes = figure.subplots()
        first, second = sides.values()
        for seed in first.keys() & second.keys():
            axes.plot([100 * first[seed], 100 * second[seed]], [0, 1], color=_GREY, linewidth=0.8)
        for place, (colour, of) in enumerate(zip(COLOURS, sides.values(), strict=False)):
            axes.plot([100 * share for share in of.values()], [place] * len(of), "o", color=colour)
        axes.set_yticks(range(len(sides)), list(sides))
        axes.set_ylim(-0.5, len(sides) - 0.5)
        axes.invert_yaxis()
        axes.set_xlabel(x_label)
        axes.grid(axis="y", visible=False)
        return _svg(figure)


def differences(intervals: Sequence[tuple[float, float, float]], *, x_label: str, most: float = 100.0) -> str:
    """Differences with their intervals as an `<svg>` element, a line each, from the least to the largest; those whose
    interval is without 0 have a colour.

    Args:
        intervals: Least, mean and most of each, in any order.
        most: Where the axis ends on both sides; what reaches further is cut there.
    """
    with rc_context(_STYLE):
        figure, axes = _with_margins(6.6, 0.8 + 0.055 * len(intervals))
        for place, (low, mean, high) in enumerate(sorted(intervals, key=lambda each: each[1])):
            clear = low > 0 or high < 0
            colour = COLOURS[0] if clear else _GREY
            axes.plot([max(low, -most), min(high, most)], [place, place], color=colour, linewidth=1.0)
            axes.plot([mean], [place], "o", color=colour, markersize=2.5)
        axes.axvline(0, color=_GREY, linewidth=0.8)
        axes.set_xlim(-most, most)
        axes.set_yticks([])
        axes.set_xlabel(x_label)
        return _svg(figure)


def running_mean(values: Sequence[float], window: int) -> list[float]:
    """The mean of each value and up to `window` − 1 before it."""
    return [sum(values[max(0, i + 1 - window) : i + 1]) / min(i + 1, window) for i in range(len(values))]


def _with_margins(width: float, height: float) -> tuple[Figure, Axes]:
    """A figure of this size in inches, with room for numbers on the left and a label below."""
    figure = Figure(figsize=(width, height))
    left, right, top, below = _MARGINS
    figure.subplots_adjust(left / width, below / height, 1 - right / width, 1 - top / height)
    return figure, figure.subplots()


def _svg(figure: Figure) -> str:
    stream = io.StringIO()
    figure.savefig(stream, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = stream.getvalue()
    return text[text.index("<svg") :]


def bands(
    series: Mapping[str, tuple[Sequence[float], Sequence[float], Sequence[float], Sequence[float]]], *, x_label: str
) -> str:
    """Shares with a band around each, as an `<svg>` element.

    Args:
        series: Name → (x, middle, lowest, highest).
    """
    with rc_context(_STYLE):
        figure, axes = _with_margins(7.2, 3.2)
        for place, (name, (x, middle, low, high)) in enumerate(series.items()):
            colour = COLOURS[place % len(COLOURS)]
            axes.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)
            axes.plot(x, middle, color=colour, label=name, linestyle="-" if place < len(COLOURS) else "--")
        axes.set_xlabel(x_label)
        axes.set_ylim(-0.02, 1.02)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
        axes.legend(fontsize=7)
        return _svg(figure)


def scatter(
    series: Mapping[str, Sequence[tuple[float, float]]],
    means: Mapping[str, tuple[float, float]],
    *,
    line: Sequence[tuple[float, float]],
    x_label: str,
) -> str:
    """Shares over something else as an `<svg>` element.

    Args:
        series: Name → (x, share) of each measurement, a small mark.
        means: By the same names, a large mark.
        line: What a dashed line goes through.
    """
    with rc_context(_STYLE):
        figure, axes = _with_margins(7.2, 3.2)
        axes.plot([x for x, _ in line], [y for _, y in line], color=_GREY, linestyle="--", linewidth=1)
        for place, (name, points) in enumerate(series.items()):
            colour = COLOURS[place % len(COLOURS)]
            axes.scatter([x for x, _ in points], [y for _, y in points], color=colour, s=10, alpha=0.5)
            axes.scatter(*means[name], color=colour, s=60, label=name)
        axes.set_xlabel(x_label)
        axes.set_xlim(left=0)
        axes.set_ylim(-0.02, 1.04)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
        axes.legend(fontsize=7)
        return _svg(figure)
