"""Which published claims were tried here, and what came of each? `papers.yaml` beside this file says what a paper
claims and where its mechanism is; what came of it is a bench's stored result, in `verdicts.json`, typed by nobody.

Easy to get wrong: a verdict is about the claim at the bench's scale, not about the paper.
"""

from __future__ import annotations

import functools
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from whetstone.analysis.claim_status import NOT_TRIED, VERDICTS
from whetstone.analysis.exact import SHOWN, ExactRow, stored_rows
from whetstone.errors import RecipeError, did_you_mean
from whetstone.extras import release
from whetstone.recipe.yaml_text import yaml_document

ELSEWHERE = "on a page of its own"
"""The verdict of what another benchmark than those of `benchmarks/evidence` shows."""
DECIDED = "a decision of the design"
"""The verdict of a survey, which claims nothing that could be tried."""
_KEYS = {"decision", "title", "arxiv", "mechanism", "claim", "bench", "why", "page", "caution"}


@dataclass(frozen=True, slots=True)
class Tried:
    """What came of a claim in a bench."""

    bench: str
    world: str
    """The recipe it is laid over."""
    claim: str
    verdict: str
    figures: str
    """Differences with their intervals, part by part."""
    seeds: int
    date: str
    version: str
    scale: str = ""
    """How small it was: what each run could spend and how many tasks it was judged by."""

    @property
    def sentence(self) -> str:
        """In a line."""
        stale = f", stale: of version {self.version}" if self.version != release() else ""
        small = f" of {self.scale}" if self.scale else ""
        return f"{self.verdict} ({self.bench}, {self.seeds} seeds{small}, {self.date}{stale}): {self.figures}"


@dataclass(frozen=True, slots=True)
class Paper:
    """One paper, what it claims and what came of it."""

    key: str
    title: str
    arxiv: str | None
    mechanism: str | None
    """Where it is reached: `method gigpo`, `recipe frozen-lake`, `advantage turn_gae`; None: it is not."""
    claim: str
    benches: Sequence[str]
    """Files of `benchmarks/evidence` that try it."""
    why: str | None
    """Why it was not tried."""
    page: str | None
    """Of `benchmarks/results`, where another benchmark shows it."""
    decision: str | None = None
    """The heading of `docs/design.md`, as links write it, under which it says what was decided and where it is."""
    tried: Sequence[Tried] = ()
    exact: Sequence[ExactRow] = ()
    """Exact checks of its properties; no statement about the effect of its mechanism."""
    caution: str | None = None
    """Fact that limits its verdict: another baseline, a schedule longer than the run, a contrary stored comparison."""

    @property
    def exact_verdict(self) -> str | None:
        """`property shown` if all its exact checks hold; None without a check."""
        return min((row.verdict for row in self.exact), key=lambda verdict: verdict == SHOWN, default=None)

    @property
    def verdict(self) -> str:
        """Of all its claims: the best, but `held` only where every one held."""
        said = [each.verdict for each in self.tried]
        if not said:
            return ELSEWHERE if self.page is not None else DECIDED if self.decision is not None else NOT_TRIED
        best = min(said, key=VERDICTS.index)
        return VERDICTS[1] if best == VERDICTS[0] and set(said) != {best} else best

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        names = ("key", "title", "arxiv", "mechanism", "claim", "benches", "page", "caution", "decision", "verdict")
        values = {name: getattr(self, name) for name in names}
        if self.verdict == NOT_TRIED:
            values["why"] = self.why
        tried = [{name: getattr(each, name) for name in Tried.__slots__} for each in self.tried]
        return {**values, "tried": tried, "exact": [row.to_json() for row in self.exact]}


@functools.cache
def papers() -> Mapping[str, Paper]:
    """All of them by key, in the order they are written in."""
    folder = files("whetstone.analysis")
    document = yaml_document((folder / "papers.yaml").read_text(encoding="utf-8"), "papers.yaml", plain=True)
    verdicts = json.loads((folder / "verdicts.json").read_text(encoding="utf-8"))
    return read_papers(document, verdicts, stored_rows())


def read_papers(
    document: Mapping[str, Mapping[str, Any]], verdicts: Sequence[Mapping[str, Any]], rows: Sequence[ExactRow] = ()
) -> dict[str, Paper]:
    """Papers with what came of them.

    Args:
        document: As `papers.yaml` has it.
        verdicts: As `verdicts_of` makes them.
        rows: Rows of exact checks.

    Raises:
        RecipeError: An entry has an unknown key or lacks one, or a verdict is of no paper.
    """
    found = {}
    for key, entry in document.items():
        for name in entry:
            if name not in _KEYS:
                raise RecipeError(f"papers.yaml  {key}: no such key {name}{did_you_mean(name, _KEYS)}")
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
        )
        if paper.verdict == NOT_TRIED and not paper.why:
            raise RecipeError(f"papers.yaml  {key}: was not tried, and why is not said")
        found[key] = paper
    strangers = sorted({each["paper"] for each in verdicts} - set(found))
    if strangers:
        raise RecipeError(f"papers.yaml  no paper {strangers[0]}{did_you_mean(strangers[0], found)}; a bench names it")
    unknown = sorted({key for row in rows for key in row.papers} - set(found))
    if unknown:
        raise RecipeError(f"exact.json  no paper {unknown[0]}{did_you_mean(unknown[0], found)}; correct the check")
    return found


def _waiting(benches: Sequence[str]) -> str | None:
    return f"a bench tries it ({', '.join(benches)}) and has no result of two seeds yet" if benches else None


def paper_called(said: str) -> Paper:
    """The paper of a key, an arXiv id, or part of a title.

    Raises:
        RecipeError: There is none, or more than one.
    """
    every = papers()
    low = said.lower().removeprefix("arxiv:")
    exact = [paper for paper in every.values() if low in (paper.key, paper.arxiv, paper.title.lower())]
    found = exact or [paper for paper in every.values() if low in paper.title.lower()]
    if len(found) > 1:
        raise RecipeError(f"{said}: {len(found)} papers, among them {', '.join(paper.key for paper in found[:4])}")
    if not found:
        raise RecipeError(f"no paper {said}{did_you_mean(low, every)}; `whetstone papers` lists them")
    return found[0]


def shares(every: Iterable[Paper]) -> dict[str, int]:
    """How many papers have which verdict."""
    counts = Counter(paper.verdict for paper in every)
    return {verdict: counts[verdict] for verdict in (*VERDICTS[:3], ELSEWHERE, DECIDED, NOT_TRIED)}


def exact_counts(every: Iterable[Paper]) -> dict[str, int]:
    """Number of papers by the verdict of their exact checks; papers without a check are not counted."""
    return dict(Counter(paper.exact_verdict for paper in every if paper.exact_verdict is not None))


def verdicts_of(results: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What `verdicts.json` holds: of every claim that was tried, what the bench's stored result says.

    Args:
        results: As `run_bench` makes them.
    """
    return [
        {
            "paper": claim["paper"],
            "bench": told["name"],
            "world": told["world"],
            "claim": claim["claim"],
            "verdict": claim["verdict"],
            "figures": "; ".join(part_line(part) for part in claim["parts"]),
            "seeds": min(part["seeds"] for part in claim["parts"]),
            "date": told["date"],
            "version": told["version"],
            "scale": _scale(told),
        }
        for told in sorted(results, key=lambda told: str(told["name"]))
        for claim in told["claims"]
        if claim["verdict"] != NOT_TRIED
    ]


def _scale(told: Mapping[str, Any]) -> str:
    """What each run of a result could spend and how many tasks it was judged by; empty where a script said how long."""
    spent = [f"{most:,.0f} {unit.replace('_', ' ')}" for unit, most in told["budget"].items()]
    return " and ".join([*spent, f"{told['tasks']} tasks"]) if spent else ""


def part_line(part: Mapping[str, Any]) -> str:
    """One part of a claim: what it is less what it is compared with."""
    share = part["measure"] in ("success", "area under the curve")
    unit, scale = (" points", 100.0) if share else ("", 1.0)
    low, high = part["interval"]
    over = f"{_signed(scale * low)} to {_signed(scale * high)}" if low is not None else "one seed"
    tasks = f", p {part['p_tasks']:.3f}" if part["p_tasks"] is not None else ""
    return f"{part['measure']} against {part['than']} {_signed(scale * part['difference'])}{unit} ({over}{tasks})"


def _signed(value: float) -> str:
    return f"{value:+.1f}" if abs(value) < 1000 else f"{value:+,.0f}"
