"""The page of papers: what each claims, where its mechanism is, and what came of it here."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from whetstone.analysis.claim_status import HELD, IN_PART, NOT_HELD, NOT_TRIED
from whetstone.analysis.papers import DECIDED, ELSEWHERE, Paper, papers, shares

DESIGN = Path(__file__).parent / "design.md"
TOP = """# Papers

*Written from `papers.yaml` and the stored results of [benchmarks/evidence](../benchmarks/evidence) by `make docs`.*

{shares}

**held**: the 95 % interval over seeds of the paired difference lies on the claimed side of 0, for every part of the
claim; **held in part**: that of some part does, or the mean does and a permutation test over tasks has p < 0.05 (Holm);
**not held at this scale**: it was tried with a tiny policy in a small world, and does neither. None of this is a
verdict on a paper: it says what its mechanism does here, for a budget of minutes.

`whetstone papers --paper TITLE` tells one of them, `python benchmarks/evidence.py BENCH` tries again.
"""
HEADS = {
    HELD: "Held",
    IN_PART: "Held in part",
    NOT_HELD: "Not held at this scale",
    ELSEWHERE: "On a page of its own",
    DECIDED: "Decisions of the design",
    NOT_TRIED: "Not tried",
}


def papers_page() -> str:
    """The page."""
    every = list(papers().values())
    counts = shares(every)
    told = "; ".join(f"{verdict} {count} ({count / len(every):.0%})" for verdict, count in counts.items())
    lines = [TOP.format(shares=f"{len(every)} papers: {told}.")]
    for verdict, head in HEADS.items():
        chosen = sorted((paper for paper in every if paper.verdict == verdict), key=lambda paper: paper.title.lower())
        if not chosen:
            continue
        last = {NOT_TRIED: "why", ELSEWHERE: "page", DECIDED: "decision"}.get(verdict, "what came of it")
        lines += [
            f"## {head} ({len(chosen)})",
            "",
            f"| paper | claim | mechanism | {last} |",
            "| --- | --- | --- | --- |",
        ]
        lines += [f"| {_named(paper)} | {paper.claim} | {_mechanism(paper)} | {_last(paper)} |" for paper in chosen]
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


@cache
def decisions() -> dict[str, tuple[str, str]]:
    """By heading as links write it, each heading of the page of design and the first sentences of what was decided."""
    found = {}
    for title, text in re.findall(r"^### ([^\n]+)\n\n(.+?)(?=\n#|\Z)", DESIGN.read_text(), re.MULTILINE | re.DOTALL):
        link = re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-")
        decided = re.sub(
            r"^\*[^*]+\*\.? ?", "", " ".join(text.partition("\n\n")[0].split())
        )  # without the survey's name
        plain = re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", decided.replace("**", ""))
        sentences = re.split(r"(?<=\.) ", plain)
        asked = plain[:1].islower()  # the first says what the survey asks for
        found[link] = (title, sentences[asked].rstrip(":").replace("|", "\\|"))
    return found


def _named(paper: Paper) -> str:
    title = paper.title.replace("|", "\\|")
    return f"[{title}](https://arxiv.org/abs/{paper.arxiv})" if paper.arxiv else title


def _mechanism(paper: Paper) -> str:
    return f"`{paper.mechanism}`" if paper.mechanism else ""


def _last(paper: Paper) -> str:
    if paper.tried:
        return "<br>".join(f"{each.claim}: {each.sentence}" for each in paper.tried)
    if paper.page is not None:
        return f"[{paper.page}](../benchmarks/results/{paper.page}.md)"
    if paper.decision is not None:
        title, said = decisions()[paper.decision]
        return f"[{title}](design.md#{paper.decision}): {said}"
    return paper.why or ""
