"""The page of what was learned: the strongest effects of all benches and those that vanished, each with its plot."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whetstone.analysis.papers import part_line
from whetstone.analysis.silence import SHARES, sides_of, silence_of
from whetstone.reporting.charts import differences, pairs

RESULTS = Path(__file__).parent.parent / "benchmarks" / "results" / "evidence"
FOLDER = "what-matters"
MOST = 5
TOP = """# What matters at this scale

*Written from the stored results of [benchmarks/evidence](../benchmarks/results/evidence) by `make docs`.*

Tiny policies, small worlds, budgets of minutes, a few seeds. Of {parts} comparisons of success (or of the area under
its curve) over seeds, in {benches} benches, {clear} have a 95 % interval without 0, {against} of them against what the
paper claims. {silent} could not have shown anything, and are told of at the end.

![Every comparison with its interval, from the worst to the best]({folder}/every.svg)

A line a comparison, from the worst to the best: the mean difference over seeds and its interval, cut at 100 points;
blue where it is without 0. Most are wide: two or three seeds of a small bench tell 30 points from nothing, not three.
"""
STRONG = """## The strongest effects

Those whose interval is without 0, the largest of each bench (of those on the same world, of one), by how large they
are, either way: an effect against a paper's claim is one too. Each plot has a dot a seed, and a line between two
contenders of one seed.
"""
VANISHED = """## The effects that vanished

What a paper credits, and what made the least difference to success here: of each bench (of those on the same world,
of one) the one whose interval reaches least far from 0. How far it reaches is what the seeds cannot rule out.
"""
SILENT = """## What could show nothing

Both contenders at the bottom or at the top, or equal in every task of every seed, so that the switch never acted. Such
a comparison asks for a harder or an easier bench; it says nothing against the paper.
"""


@dataclass(frozen=True, slots=True)
class Effect:
    """One comparison of two contenders by a claim of a paper."""

    bench: Mapping[str, Any]
    claim: Mapping[str, Any]
    part: Mapping[str, Any]

    @property
    def clear(self) -> bool:
        """Whether the interval over seeds is without 0."""
        low, high = self.part["interval"]
        return bool(low > 0 or high < 0)

    @property
    def reach(self) -> float:
        """How far from 0 the interval reaches."""
        return float(max(map(abs, self.part["interval"])))

    @property
    def vanished(self) -> bool:
        """Whether one of success was claimed and is not seen: neither over seeds nor over tasks."""
        claimed = self.part["measure"] == "success" and not self.claim["within"]
        return claimed and not self.clear and not self.part["in_part"]

    @property
    def world(self) -> str:
        """Of the bench: what benches of one script have in common; else its name."""
        script = self.bench["script"]
        return str(script).split()[0] if script else str(self.bench["name"])

    @property
    def silent(self) -> str | None:
        """Why nothing could have been seen, if so."""
        return silence_of(self.bench, self.claim, self.part)

    @property
    def sides(self) -> dict[str, dict[int, float]]:
        """Contender → seed → measured."""
        return sides_of(self.bench, self.claim, self.part)


def effects() -> list[Effect]:
    """All that compare shares over two seeds or more; of several claims about the same two, the first."""
    found: dict[tuple[Any, ...], Effect] = {}
    for path in sorted(RESULTS.glob("*.json")):
        bench = json.loads(path.read_text(encoding="utf-8"))
        for claim in bench["claims"]:
            for part in claim["parts"]:
                if part["measure"] in SHARES and part["seeds"] > 1:
                    pair = (bench["name"], part["measure"], frozenset((claim["better"], part["than"])))
                    found.setdefault(pair, Effect(bench, claim, part))
    return list(found.values())


def what_matters_page() -> tuple[str, dict[str, str]]:
    """The page, and its plots by file name."""
    every = effects()
    silent = [one for one in every if one.silent]
    telling = [one for one in every if not one.silent]
    clear = sorted((one for one in telling if one.clear), key=lambda one: -abs(one.part["difference"]))
    rest = sorted((one for one in telling if one.vanished), key=lambda one: one.reach)
    top = TOP.format(
        parts=len(every),
        benches=len({one.bench["name"] for one in every}),
        clear=len(clear),
        against=sum(one.part["difference"] < 0 for one in clear),
        silent=len(silent),
        folder=FOLDER,
    )
    lines, plots = [top], {"every.svg": differences([_bounds(one) for one in telling], x_label="points")}
    for head, kind, chosen in ((STRONG, "strong", _apart(clear)), (VANISHED, "vanished", _apart(rest))):
        lines.append(head)
        for place, one in enumerate(chosen, 1):
            file = f"{kind}-{place}.svg"
            plots[file] = pairs(one.sides, x_label=f"{one.part['measure']} (%)")
            lines.append(_shown(one, f"{FOLDER}/{file}", kind))
        if not chosen:
            lines.append("None so far.\n")
    if silent:
        lines += [SILENT, *(f"- {_named(one)} ({_of(one)}): {one.silent}." for one in silent)]
    return "\n".join(lines).rstrip() + "\n", plots


def _apart(ordered: list[Effect]) -> list[Effect]:
    """The first of each world, and of them as many as are shown."""
    found: dict[str, Effect] = {}
    for one in ordered:
        found.setdefault(one.world, one)
    return list(found.values())[:MOST]


def _bounds(one: Effect) -> tuple[float, float, float]:
    """Least, mean and most, in points."""
    low, high = one.part["interval"]
    return 100 * low, 100 * one.part["difference"], 100 * high


def _named(one: Effect) -> str:
    return f"{one.claim['better']} against {one.part['than']}"


def _of(one: Effect) -> str:
    bench = one.bench["name"]
    return f"`{one.claim['paper']}`, [{bench}](../benchmarks/results/evidence/{bench}.md)"


def _shown(one: Effect, plot: str, kind: str) -> str:
    bench, claim = one.bench["name"], one.claim["claim"]
    if kind == "vanished":
        said = f" An effect of up to {100 * one.reach:.1f} points, either way, cannot be ruled out."
    else:
        said = " It goes against the claim." if one.part["difference"] < 0 else ""
    return (
        f"### {_named(one)}\n\n"
        f"{'… ' if claim[0].islower() else ''}{claim} (`{one.claim['paper']}`: {one.claim['verdict']}). "
        f"Here: {part_line(one.part)}, "
        f"{one.part['seeds']} seeds, [{bench}](../benchmarks/results/evidence/{bench}.md). "
        f"What differs: {one.claim['switch']}.{said}\n\n"
        f"![{one.claim['better']} and {one.part['than']} by seed]({plot})\n"
    )
