"""The page of papers: what each claims, where its mechanism is, and what came of it here."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from whetstone.analysis.claim_status import HELD, IN_PART, NOT_HELD, NOT_TRIED
from whetstone.analysis.exact import ExactRow, stored_rows
from whetstone.analysis.papers import DECIDED, ELSEWHERE, Paper, exact_counts, papers, shares

DESIGN = Path(__file__).parent / "design.md"
TOP = """# Papers

*Written from `papers.yaml` and the stored results of [benchmarks/evidence](../benchmarks/evidence) by `make docs`.*

{shares}

*Exact*: {exact}. The property is enumerated on the built-in component, without training. The
figures are in the table [exact checks](#exact-checks).

*Effect here*: **held**: the 95 % interval over seeds of the paired difference lies on the claimed side of 0, for every
part of the claim; **held in part**: that of some part does, or the mean does and a permutation test over tasks has
p < 0.05 (Holm); **not held at this scale**: it was tried with a tiny policy in a small world, and does neither. None of
this is a verdict on a paper: it says what its mechanism does here, for a budget of minutes.

*Caution* is a fact that limits a verdict: the baseline is the policy before training or does not learn, a schedule is
longer than the run, a stored comparison contradicts the claim.

`whetstone papers --paper TITLE` tells one of them, `python benchmarks/evidence.py BENCH` tries again, and
`python benchmarks/exact_checks.py --write` recomputes all exact checks.
"""
EXACT = """## Exact checks

{count} rows, each a test: `tests/papers/test_exact.py::test_property[CHECK]`. *Expected* is the value of the paper's
formula or of an enumeration, *measured* that of the component.

| check | papers | property | component | quantity: expected, measured |
| --- | --- | --- | --- | --- |"""
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
    checked = ", ".join(f"{verdict} for {count} papers" for verdict, count in exact_counts(every).items())
    lines = [TOP.format(shares=f"{len(every)} papers: {told}.", exact=checked or "no check")]
    rows = stored_rows()
    lines += [EXACT.format(count=len(rows)), *map(_exact_line, rows), ""]
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


def _exact_line(row: ExactRow) -> str:
    titles = [papers()[key].title.partition(":")[0] for key in row.papers]
    components = ", ".join(f"`{component.rpartition('.')[2]}`" for component in row.components)
    figures = "<br>".join(figure.text for figure in row.figures)
    note = f" *{row.note[0].upper()}{row.note[1:]}.*" if row.note else ""
    return f"| `{row.check}` | {'; '.join(titles)} | {row.claim}.{note} | {components} | {figures} |".replace("\n", " ")


def _last(paper: Paper) -> str:
    effect = _effect(paper) + (f"<br>*Caution*: {paper.caution}" if paper.caution is not None else "")
    if paper.exact_verdict is None:
        return effect
    checks = ", ".join(f"`{row.check}`" for row in paper.exact)
    return f"*Exact*: {paper.exact_verdict} ({checks}).<br>{effect}"


def _effect(paper: Paper) -> str:
    if paper.tried:
        return "<br>".join(f"{each.claim}: {each.sentence}" for each in paper.tried)
    if paper.page is not None:
        return f"[{paper.page}](../benchmarks/results/{paper.page}.md)"
    if paper.decision is not None:
        title, said = decisions()[paper.decision]
        return f"[{title}](design.md#{paper.decision}): {said}"
    return paper.why or ""
