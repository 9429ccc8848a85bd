"""The page of what was learned: the strongest effects of all benches and those that vanished, each with its plot."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whetstone.analysis.papers import part_line
from whetstone.reporting.charts import pairs

RESULTS = Path(__file__).parent.parent / "benchmarks" / "results" / "evidence"
FOLDER = "what-matters"
MOST = 5
SHARES = ("success", "area under the curve")
TOP = """# What matters at this scale

*Written from the stored results of [benchmarks/evidence](../benchmarks/results/evidence) by `make docs`.*

Tiny policies, small worlds, budgets of minutes, a few seeds. Of {parts} comparisons of success (or of the area under
its curve) over seeds, in {benches} benches, {clear} have a 95 % interval without 0. Each plot has a dot a seed, and a
line between two contenders of one seed.
"""
STRONG = """## The strongest effects

Those whose interval is without 0, by how large they are, either way: an effect against a paper's claim is one too.
"""
VANISHED = """## The effects that vanished

What a paper credits, and what made the least difference here: those whose interval reaches least far from 0. How far it
reaches is what the seeds cannot rule out.
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
    def sides(self) -> dict[str, dict[int, float]]:
        """Contender → seed → measured."""
        named = {each["name"]: each["runs"] for each in self.bench["contenders"]}
        both = {
            name: {run["seed"]: run["measures"][self.part["measure"]] for run in named[name] if not run["failed"]}
            for name in (self.claim["better"], self.part["than"])
        }
        return {name: {s: v for s, v in seeds.items() if v is not None} for name, seeds in both.items()}


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
    clear = sorted((one for one in every if one.clear), key=lambda one: -abs(one.part["difference"]))
    rest = sorted((one for one in every if not one.clear), key=lambda one: one.reach)
    benches = len({one.bench["name"] for one in every})
    lines, plots = [TOP.format(parts=len(every), benches=benches, clear=len(clear))], {}
    for head, kind, chosen in ((STRONG, "strong", _apart(clear)), (VANISHED, "vanished", _apart(rest))):
        lines.append(head)
        for place, one in enumerate(chosen, 1):
            file = f"{kind}-{place}.svg"
            plots[file] = pairs(one.sides, x_label=f"{one.part['measure']} (%)")
            lines.append(_shown(one, f"{FOLDER}/{file}"))
        if not chosen:
            lines.append("None so far.\n")
    return "\n".join(lines).rstrip() + "\n", plots


def _apart(ordered: list[Effect]) -> list[Effect]:
    """The first of them, no two of the same contenders in one bench."""
    found: dict[tuple[Any, ...], Effect] = {}
    for one in ordered:
        found.setdefault((one.bench["name"], frozenset((one.claim["better"], one.part["than"]))), one)
    return list(found.values())[:MOST]


def _shown(one: Effect, plot: str) -> str:
    bench = one.bench["name"]
    return (
        f"### {one.claim['better']} against {one.part['than']}\n\n"
        f"{one.claim['claim']} (`{one.claim['paper']}`: {one.claim['verdict']}). Here: {part_line(one.part)}, "
        f"{one.part['seeds']} seeds, [{bench}](../benchmarks/results/evidence/{bench}.md).\n\n"
        f"![{one.claim['better']} and {one.part['than']} by seed]({plot})\n"
    )
