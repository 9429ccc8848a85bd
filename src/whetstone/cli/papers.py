"""`whetstone papers`: published claims with their exact checks and their effects in the benches of this project."""

from __future__ import annotations

import click

from whetstone.analysis.paper_verdicts import MISSING, Paper, effect_counts, exact_counts, load_papers, paper_called
from whetstone.evaluation.verdicts import NOT_RUN
from whetstone.strict_json import to_json


@click.command("papers")
@click.option("--paper", metavar="TITLE", help="Show one paper, given by its key, arXiv id or part of its title.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def papers_command(paper: str | None, as_json: bool) -> None:
    """List papers with two verdicts: exact checks, and the effect at small scale."""
    chosen = [paper_called(paper)] if paper is not None else list(load_papers().values())
    if as_json:
        described = [each.to_json() for each in chosen]
        counts = {"exact": exact_counts(chosen), "effect": effect_counts(chosen)}
        click.echo(to_json(described[0] if paper is not None else {**counts, "papers": described}))
        return
    if paper is not None:
        for line in format_paper(chosen[0]):
            click.echo(line)
        return
    width = max(len(each.key) for each in chosen)
    for each in chosen:
        click.echo(f"{each.key:<{width}}  {each.exact_verdict:<28}  {each.effect:<27}  {each.title}")
    click.echo(f"{len(chosen)} papers, {sum(each.analogy for each in chosen)} of them by analogy")
    for head, numbers in (("exact", exact_counts(chosen)), ("effect", effect_counts(chosen))):
        click.echo(f"{head + ':':<8}{', '.join(f'{verdict} {count}' for verdict, count in numbers.items())}")


def format_paper(paper: Paper) -> list[str]:
    """Format the claim, component and verdicts of one paper as lines."""
    arxiv = f"  arXiv:{paper.arxiv}" if paper.arxiv else ""
    analogy = " (by analogy)" if paper.analogy else ""
    lines = [f"{paper.title}{arxiv}", f"claim{analogy}: {paper.claim}", f"component: {paper.mechanism or 'none'}"]
    kind, _, name = (paper.mechanism or "").partition(" ")
    if kind == "method":
        lines.append(f"use:       whetstone train RECIPE with={name}")
    formula = paper.formula_verdict
    lines.append(
        f"exact:     {paper.exact_verdict}{f'; {formula}' if formula not in (None, paper.exact_verdict) else ''}"
    )
    lines += [f"           {row.sentence}" for row in paper.exact]
    if paper.simpler is not None:
        lines.append(f"simpler:   {paper.simpler}")
    lines.append(f"effect:    {paper.effect}")
    lines += [f"           {each.claim}: {each.sentence}" for each in paper.tried]
    benches = dict.fromkeys(each.bench for each in paper.tried)
    lines += [f"rerun:     python -m benchmarks evidence {bench}   # in a clone of the repository" for bench in benches]
    if paper.caution is not None:
        lines.append(f"caution:   {paper.caution}")
    if paper.page is not None:
        lines.append(f"page:      benchmarks/results/{paper.page}.md")
    if paper.decision is not None:
        lines.append(f"decision:  docs/guide/design.md#{paper.decision}")
    if paper.effect == NOT_RUN:
        lines.append(f"not run:   {paper.why} ({MISSING[paper.missing or 'run'].lower()})")
    return lines
