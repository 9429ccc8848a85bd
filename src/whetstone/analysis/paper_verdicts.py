"""Published claims and their two verdicts: exact checks, and the effect in the benches of this project.

`papers.yaml` has the claims and the components that implement them. `verdicts.json` is computed from the stored results
of `benchmarks/evidence`, `exact.json` from the exact checks; no verdict is entered by hand.

Note:
    An effect is about a small policy in a small environment with a budget of minutes, not about the paper.
"""

from __future__ import annotations

import functools
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from whetstone.analysis.exact import REFUTED, SHOWN, ExactRow, stored_rows
from whetstone.errors import RecipeError, did_you_mean
from whetstone.evaluation.verdicts import EFFECTS, NOT_RUN, NOT_TESTABLE, find_weakest_effect
from whetstone.recipe.yaml_text import yaml_document

ELSEWHERE = "measured on another page"
"""Effect of a paper that another benchmark than those of `benchmarks/evidence` measures."""
DECIDED = "a decision of the design"
"""Effect of a survey, which has no claim that could be tested."""
RELEASED, PUBLISHED, SIMPLER, UNCHECKED = (
    "formula equals released code",
    "formula as in the paper",
    "simpler than the paper",
    "no exact check",
)
_FORMULAS = {"released code": RELEASED, "paper": PUBLISHED}
MISSING = {
    "run": "Only a run is missing",
    "piece": "A piece of the mechanism is missing",
    "images": "Image observations and page control",
    "tasks": "Generation of tasks and environments",
    "memory": "Memory, lessons and world models",
    "tools": "Environments for engineering and science",
}
"""Key of `missing` in `papers.yaml` → heading of the papers that were not run."""
_KEYS = {"decision", "title", "arxiv", "mechanism", "claim", "bench", "why", "page", "caution"}
_KEYS |= {"formula", "simpler", "analogy", "missing"}


@dataclass(frozen=True, slots=True)
class Tried:
    """Measured effect of one claim of a paper in one bench of `benchmarks/evidence`."""

    bench: str
    """Name of the bench."""
    world: str
    """Recipe that the bench extends."""
    claim: str
    """Claim that was tested."""
    verdict: str
    """Effect of the claim, one of `EFFECTS`."""
    reason: str
    """Reason of the verdict."""
    figures: str
    """Differences with their intervals, part by part."""
    seeds: int
    """Number of seeds."""
    date: str
    """Date of the runs."""
    version: str
    """Version of Whetstone."""
    scale: str = ""
    """Budget of a run and number of evaluation tasks."""

    @property
    def sentence(self) -> str:
        """Format verdict, bench and figures in one line."""
        budget = f", {self.scale}" if self.scale else ""
        return f"{self.verdict} ({self.reason}; {self.bench}, {self.seeds} seeds{budget}, {self.date}): {self.figures}"


@dataclass(frozen=True, slots=True)
class Paper:
    """Paper with its claim, the component that implements it, and the verdicts on formulas and effect."""

    key: str
    """Key in `papers.yaml`."""
    title: str
    """Title of the paper."""
    arxiv: str | None
    """arXiv id; None if the paper is elsewhere."""
    mechanism: str | None
    """Component that implements it: `method gigpo`, `recipe frozen-lake`, `advantage turn_gae`; None: there is none."""
    claim: str
    """Claim of the paper that is tested."""
    benches: Sequence[str]
    """Files of `benchmarks/evidence` that test it."""
    why: str | None
    """Reason why it was not run."""
    page: str | None
    """Page of `benchmarks/results` of another benchmark that measures it."""
    decision: str | None = None
    """Heading of `docs/guide/design.md`, as in links, with the decision and its place."""
    tried: Sequence[Tried] = ()
    """Effects of its claims in the benches."""
    exact: Sequence[ExactRow] = ()
    """Exact checks of its properties; no statement about the effect of its mechanism."""
    caution: str | None = None
    """Fact that limits its verdict: another baseline, a schedule longer than the run, a contrary stored comparison."""
    formula: str | None = None
    """Origin of the formula that tests compare with: `released code` or `paper`."""
    simpler: str | None = None
    """Difference from the paper, if the component is simpler."""
    analogy: bool = False
    """Whether the paper is on another subject (robots, chips, trading) and the claim an analogy."""
    missing: str | None = None
    """Key of `MISSING` for a paper that was not run."""

    @property
    def exact_verdict(self) -> str:
        """Return the verdict on the paper's formulas and properties.

        It is that of the exact checks if there are any, else whether the implementation is simpler than the paper.
        """
        if self.exact:
            return SHOWN if all(row.verdict == SHOWN for row in self.exact) else REFUTED
        if self.simpler is not None:
            return SIMPLER
        return self.formula_verdict or UNCHECKED

    @property
    def formula_verdict(self) -> str | None:
        """Return `formula equals released code` or `formula as in the paper`; None without such a test."""
        return None if self.formula is None else _FORMULAS[self.formula]

    @property
    def effect(self) -> str:
        """Return the weakest effect of its claims. Untestable claims count only if no other claim is testable."""
        verdicts = [each.verdict for each in self.tried]
        if verdicts:
            return find_weakest_effect([each for each in verdicts if each != NOT_TESTABLE] or verdicts)
        return ELSEWHERE if self.page is not None else DECIDED if self.decision is not None else NOT_RUN

    def to_json(self) -> dict[str, Any]:
        """Return the paper with its verdicts as JSON values."""
        names = ("key", "title", "arxiv", "mechanism", "claim", "analogy", "benches", "page", "caution", "decision")
        values = {name: getattr(self, name) for name in names}
        values |= {"exact_verdict": self.exact_verdict, "effect": self.effect, "simpler": self.simpler}
        if self.effect == NOT_RUN:
            values |= {"why": self.why, "missing": self.missing}
        tried = [{name: getattr(each, name) for name in Tried.__slots__} for each in self.tried]
        return {**values, "tried": tried, "exact": [row.to_json() for row in self.exact]}


@functools.cache
def load_papers() -> Mapping[str, Paper]:
    """Return all papers by key, in the order of `papers.yaml`."""
    folder = files("whetstone.analysis")
    document = yaml_document((folder / "papers.yaml").read_text(encoding="utf-8"), "papers.yaml", plain=True)
    verdicts = json.loads((folder / "verdicts.json").read_text(encoding="utf-8"))
    return read_papers(document, verdicts, stored_rows())


def read_papers(
    document: Mapping[str, Mapping[str, Any]], verdicts: Sequence[Mapping[str, Any]], rows: Sequence[ExactRow] = ()
) -> dict[str, Paper]:
    """Combine the entries of `papers.yaml` with their verdicts and exact checks.

    Args:
        document: Content of `papers.yaml`.
        verdicts: Content of `verdicts.json`, from `claims.claim_effects.verdicts_of` in `benchmarks`.
        rows: Rows of exact checks.

    Raises:
        RecipeError: An entry has an unknown key or value or lacks one, or a verdict names an unknown paper.
    """
    by_key = {}
    for key, entry in document.items():
        for name in entry:
            if name not in _KEYS:
                raise RecipeError(f"papers.yaml  {key}: no such key {name}{did_you_mean(name, _KEYS)}")
        for name, values in (("formula", _FORMULAS), ("missing", MISSING)):
            if entry.get(name) is not None and entry[name] not in values:
                raise RecipeError(f"papers.yaml  {key}: {name}: {entry[name]}: one of {', '.join(values)}")
        tried = [Tried(**{k: v for k, v in each.items() if k != "paper"}) for each in verdicts if each["paper"] == key]
        paper = Paper(
            key,
            str(entry["title"]),
            entry.get("arxiv"),
            entry.get("mechanism"),
            str(entry["claim"]),
            tuple(entry.get("bench", ())),
            entry.get("why") or _waiting(entry.get("bench", ())),
            entry.get("page"),
            entry.get("decision"),
            tuple(tried),
            tuple(row for row in rows if key in row.papers),
            entry.get("caution"),
            entry.get("formula"),
            entry.get("simpler"),
            bool(entry.get("analogy", False)),
            entry.get("missing") or "run",
        )
        if paper.effect == NOT_RUN and not paper.why:
            raise RecipeError(f"papers.yaml  {key}: was not run and has no reason; set why")
        by_key[key] = paper
    unlisted = sorted({each["paper"] for each in verdicts} - set(by_key))
    if unlisted:
        raise RecipeError(
            f"papers.yaml: a benchmark has a claim of paper {unlisted[0]}, which is not listed"
            f"{did_you_mean(unlisted[0], by_key)}"
        )
    unknown = sorted({key for row in rows for key in row.papers} - set(by_key))
    if unknown:
        raise RecipeError(f"exact.json  no paper {unknown[0]}{did_you_mean(unknown[0], by_key)}; correct the check")
    return by_key


def _waiting(benches: Sequence[str]) -> str | None:
    return f"bench without a result: {', '.join(benches)}" if benches else None


def paper_called(name: str) -> Paper:
    """Find a paper by its key, its arXiv id, or part of its title.

    Raises:
        RecipeError: No paper matches, or more than one.
    """
    every = load_papers()
    low = name.lower().removeprefix("arxiv:")
    exact = [paper for paper in every.values() if low in (paper.key, paper.arxiv, paper.title.lower())]
    matches = exact or [paper for paper in every.values() if low in paper.title.lower()]
    if len(matches) > 1:
        raise RecipeError(f"{name}: {len(matches)} papers match, e.g. {', '.join(paper.key for paper in matches[:4])}")
    if not matches:
        raise RecipeError(f"{name}: no such paper{did_you_mean(low, every)}; `whetstone papers` lists all papers")
    return matches[0]


def effect_counts(every: Iterable[Paper]) -> dict[str, int]:
    """Count the papers by effect; effects without a paper have 0."""
    counts = Counter(paper.effect for paper in every)
    return {effect: counts[effect] for effect in (*EFFECTS, ELSEWHERE, DECIDED, NOT_RUN)}


def exact_counts(every: Iterable[Paper]) -> dict[str, int]:
    """Count the papers by exact verdict; verdicts without a paper have 0."""
    counts = Counter(paper.exact_verdict for paper in every)
    return {verdict: counts[verdict] for verdict in (SHOWN, RELEASED, PUBLISHED, SIMPLER, REFUTED, UNCHECKED)}


def format_part(part: Mapping[str, Any]) -> str:
    """Format one part of a claim: measure, baseline, difference and interval."""
    is_share = part["measure"] in ("success", "area under the curve")
    unit, scale = (" points", 100.0) if is_share else ("", 1.0)
    low, high = part["interval"]
    interval = f" ({_signed(scale * low)} to {_signed(scale * high)})" if low is not None else ""
    needed = ""
    if part["verdict"] == "cannot tell" and is_share:
        needed = f", {part['seeds_needed']} seeds detect 5 points"
    return f"{part['measure']} against {part['than']} {_signed(scale * part['difference'])}{unit}{interval}{needed}"


def _signed(value: float) -> str:
    return f"{value:+.1f}" if abs(value) < 1000 else f"{value:+,.0f}"
