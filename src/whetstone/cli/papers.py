"""`whetstone papers`: which published claims were tried here, and what came of each."""

from __future__ import annotations

import click

from whetstone.analysis.claim_status import NOT_TRIED
from whetstone.analysis.papers import Paper, exact_counts, paper_called, papers, shares
from whetstone.plain_json import to_json


@click.command("papers")
@click.option("--paper", metavar="TITLE", help="Show one paper, given by its key, arXiv id or part of its title.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def papers_command(paper: str | None, as_json: bool) -> None:
    """List papers: what each claims, where its mechanism is, and what came of it on a small scale."""
    chosen = [paper_called(paper)] if paper is not None else list(papers().values())
    if as_json:
        described = [each.to_json() for each in chosen]
        click.echo(
            to_json(
                described[0]
                if paper is not None
                else {"verdicts": shares(chosen), "exact": exact_counts(chosen), "papers": described}
            )
        )
        return
    if paper is not None:
        for line in lines_of(chosen[0]):
            click.echo(line)
        return
    width = max(len(each.key) for each in chosen)
    for each in chosen:
        click.echo(f"{each.key:<{width}}  {each.verdict:<22}  {'exact' if each.exact else '':<5}  {each.title}")
    counted = ", ".join(f"{verdict} {count}" for verdict, count in shares(chosen).items())
    click.echo(f"{len(chosen)} papers: {counted}")
    exact = ", ".join(f"{verdict} {count}" for verdict, count in exact_counts(chosen).items())
    click.echo(f"exact checks: {exact or 'none'}")


def lines_of(paper: Paper) -> list[str]:
    """All that is known of one."""
    arxiv = f"  arXiv:{paper.arxiv}" if paper.arxiv else ""
    lines = [f"{paper.title}{arxiv}", f"claims:    {paper.claim}", f"mechanism: {paper.mechanism or 'none here'}"]
    lines += [f"exact:     {row.sentence}" for row in paper.exact]
    lines += [f"{each.claim}: {each.sentence}" for each in paper.tried]
    if paper.caution is not None:
        lines.append(f"caution:   {paper.caution}")
    if paper.page is not None:
        lines.append(f"shown in   benchmarks/results/{paper.page}.md")
    if paper.decision is not None:
        lines.append(f"decided in docs/design.md#{paper.decision}")
    if paper.verdict == NOT_TRIED:
        lines.append(f"not tried: {paper.why}")
    return lines
