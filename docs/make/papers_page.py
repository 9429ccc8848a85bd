"""Pages of papers: claims with their two verdicts, and the papers that were not run."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from whetstone.analysis.exact import SHOWN, ExactRow, stored_rows
from whetstone.analysis.paper_verdicts import (
    DECIDED,
    ELSEWHERE,
    MISSING,
    Paper,
    effect_counts,
    exact_counts,
    load_papers,
)
from whetstone.evaluation.verdicts import EFFECTS, NOT_RUN

DESIGN = Path(__file__).parents[1] / "guide" / "design.md"
NOT_RUN_PAGE = "papers-not-run.md"
TOP = """# Papers

*Written from `papers.yaml` and the stored results of [benchmarks/evidence](../../benchmarks/evidence) by `make docs`.*

Each paper has two verdicts.

| exact | papers |
| --- | --: |
{exact}

| effect here | papers |
| --- | --: |
{effect}

{analogies} of {count} papers are on another subject (robots, chips, trading); their claims are analogies and are listed
separately. The {not_run} papers that were not run are on [a separate page]({page}).

**Exact.** *Property shown*: in a small setting that is enumerated, the built-in component has a property from which
the claim would follow ([exact checks](#exact-checks)); players, judges and policies are often scripts. It is no
statement about trained models. Of these papers, {simpler} are simpler than the paper and {shown_analogies} are
analogies. *Formula equals released code* and *formula as in the paper*: tests compare the component with worked
numbers of that source; no paper has these verdicts before an audit of its tests. *Simpler than the paper*: the
difference is listed.

**Effect here.** Small policies in small environments, with budgets of minutes.

- *Better* or *worse*: the 95 % interval of the difference excludes 0. *No difference of 5 points*: it is within ±5
  points. *Cannot tell*: all else, and every claim with fewer than 8 seeds.
- *Not testable here*: the baseline does not meet the entry rule (it starts on average at 20 to 45 % success, gains
  at least 20 points in every seed and ends below 85 %), both contenders are equal in every task, or a stated
  reason.
- Intervals are paired by seed and simultaneous over all contenders with the same baseline. From 8 seeds on,
  the variance is that of the paired differences (Šidák); with fewer seeds it is pooled over the bench (Dunnett).
  *Better* and *worse* are adjusted over the page (Benjamini-Hochberg at 5 %).
- A claim of several parts has the verdict of its weakest part, a paper that of its weakest testable claim.
- Comparisons with a policy that does not learn have figures and are not counted.

`whetstone papers --paper TITLE` shows one paper, `python -m benchmarks evidence BENCH` runs a bench,
`python -m benchmarks evidence all --judge` recomputes all effects from stored rows, and
`python -m benchmarks exact_checks --write` recomputes all exact checks.
"""
EXACT = """## Exact checks

{count} checks, each a test: `tests/papers/test_exact.py::test_property[CHECK]`. *Expected* is the value of the paper's
formula or of an enumeration, *measured* that of the component.
"""
NOT_RUN_TOP = """# Papers that were not run

*Written from `papers.yaml` by `make docs`.*

{count} papers, grouped by the missing piece. The list of tested claims is [papers.md](papers.md).

| missing | papers | by analogy |
| --- | --: | --: |
{groups}
"""


def papers_page() -> str:
    """Return the page of tested claims."""
    every = list(load_papers().values())
    exact, effect = exact_counts(every), effect_counts(every)
    proven = [paper for paper in every if paper.exact_verdict == SHOWN]
    lines = [
        TOP.format(
            exact="\n".join(f"| {verdict} | {count} |" for verdict, count in exact.items()),
            effect="\n".join(f"| {verdict} | {count} |" for verdict, count in effect.items()),
            count=len(every),
            analogies=sum(paper.analogy for paper in every),
            simpler=sum(paper.simpler is not None for paper in proven),
            shown_analogies=sum(paper.analogy for paper in proven),
            not_run=effect[NOT_RUN],
            page=NOT_RUN_PAGE,
        )
    ]
    for verdict in (*EFFECTS, ELSEWHERE, DECIDED):
        chosen = _by_title(paper for paper in every if paper.effect == verdict and not paper.analogy)
        if chosen:
            lines += [f"## {verdict[0].upper()}{verdict[1:]} ({len(chosen)})", "", *_entries(chosen)]
    analogies = _by_title(paper for paper in every if paper.analogy and paper.effect != NOT_RUN)
    if analogies:
        lines += [f"## By analogy ({len(analogies)})", "", *_entries(analogies)]
    rows = stored_rows()
    lines += [EXACT.format(count=len(rows)), *(line for row in rows for line in _check(row))]
    return "\n".join(lines).rstrip() + "\n"


def not_run_page() -> str:
    """Return the page of papers that were not run."""
    every = [paper for paper in load_papers().values() if paper.effect == NOT_RUN]
    groups = {key: _by_title(paper for paper in every if paper.missing == key) for key in MISSING}
    counts = "\n".join(
        f"| {MISSING[key]} | {len(chosen)} | {sum(paper.analogy for paper in chosen)} |"
        for key, chosen in groups.items()
    )
    lines = [NOT_RUN_TOP.format(count=len(every), groups=counts)]
    for key, chosen in groups.items():
        for analogy in (False, True):
            part = [paper for paper in chosen if paper.analogy == analogy]
            if part:
                lines += [f"## {MISSING[key]}{', by analogy' if analogy else ''} ({len(part)})", "", *_entries(part)]
    return "\n".join(lines).rstrip() + "\n"


def _by_title(chosen: object) -> list[Paper]:
    return sorted(chosen, key=lambda paper: paper.title.lower())  # type: ignore[call-overload,no-any-return]


@cache
def decisions() -> dict[str, tuple[str, str]]:
    """Return anchor → (title, first sentences) of each heading of the page of design."""
    result = {}
    for title, text in re.findall(r"^### ([^\n]+)\n\n(.+?)(?=\n#|\Z)", DESIGN.read_text(), re.MULTILINE | re.DOTALL):
        link = re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-")
        decided = re.sub(
            r"^\*[^*]+\*\.? ?", "", " ".join(text.partition("\n\n")[0].split())
        )  # without the survey's name
        plain = re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", decided.replace("**", ""))
        sentences = re.split(r"(?<=\.) ", plain)
        skipped = plain[:1].islower()  # the first sentence is the survey's demand
        result[link] = (title, sentences[skipped].rstrip(":"))
    return result


def _entries(chosen: list[Paper]) -> list[str]:
    return [line for paper in chosen for line in [*_entry(paper), ""]]


def _entry(paper: Paper) -> list[str]:
    """Return a heading and the fields of one paper."""
    title = f"[{paper.title}](https://arxiv.org/abs/{paper.arxiv})" if paper.arxiv else paper.title
    lines = [f"### {title}", "", f"- Claim: {paper.claim}"]
    if paper.mechanism:
        lines.append(f"- Component: `{paper.mechanism}`")
    formula = f"; {paper.formula_verdict}" if paper.formula_verdict not in (None, paper.exact_verdict) else ""
    if paper.exact:
        page = "papers.md" if paper.effect == NOT_RUN else ""
        checks = ", ".join(f"[`{row.check}`]({page}#{row.check})" for row in paper.exact)
        lines.append(f"- Exact: {paper.exact_verdict} ({checks}){formula}")
    elif paper.mechanism:
        lines.append(f"- Exact: {paper.exact_verdict}{formula}")
    if paper.simpler is not None:
        lines.append(f"- Simpler than the paper: {paper.simpler}")
    if paper.tried:
        lines.append(f"- Effect: {paper.effect}")
        for each in paper.tried:
            bench = f"[{each.bench}](../../benchmarks/results/evidence/{each.bench}.md)"
            lines.append(f"    - {each.claim}: **{each.verdict}** ({each.reason}; {bench}, {each.seeds} seeds)")
            lines += [f"        - {figure}" for figure in each.figures.split("; ")]
    if paper.page is not None:
        lines.append(f"- Measured in [{paper.page}](../../benchmarks/results/{paper.page}.md)")
    if paper.decision is not None:
        title, text = decisions()[paper.decision]
        lines.append(f"- Decision: [{title}](../guide/design.md#{paper.decision}): {text}")
    if paper.caution is not None:
        lines.append(f"- Caution: {paper.caution}")
    if paper.effect == NOT_RUN:
        lines.append(f"- Missing: {paper.why}")
    return lines


def _check(row: ExactRow) -> list[str]:
    """Return a heading and the fields of one exact check."""
    titles = "; ".join(load_papers()[key].title.partition(":")[0] for key in row.papers)
    components = ", ".join(f"`{component.rpartition('.')[2]}`" for component in row.components)
    lines = [f"### {row.check}", "", f"- Property: {row.claim}.", f"- Papers: {titles}", f"- Components: {components}"]
    lines += [f"- {figure.text[0].upper()}{figure.text[1:]}" for figure in row.figures]
    if row.note:
        lines.append(f"- Difference from the paper: {row.note}")
    return [*lines, ""]
