"""`whetstone replay`: rewards, credit, evaluations and updates of a run, computed again from its record."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import asdict
from pathlib import Path

import click

from whetstone import analysis
from whetstone.cli import completing
from whetstone.cli.unread import say_unread
from whetstone.plain_json import to_json

_UNREAD = ("policy", "supervised", "rollout", "curriculum", "evaluation", "ablations")
"""Keys that decide what is sampled, or what came before."""


@click.command()
@click.argument("run_dir", type=click.Path(path_type=Path, file_okay=False), shell_complete=completing.run_folders)
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--updates", is_flag=True,
              help="Also recompute the updates, from the earliest available checkpoint.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def replay(run_dir: Path, overrides: tuple[str, ...], updates: bool, as_json: bool) -> None:
    """Compute again what RUN_DIR has on record, without a tool or a sample; nothing is written.

    With keys changed (reward=my.module:mine) the differences are shown. Without, there must be none: the exit code
    is 1 where something does not come out as it is on record.
    """
    unread = _UNREAD if updates else (*_UNREAD, "reinforcement")
    say_unread(overrides, unread, "what is on record was sampled already" if updates else "no update is made again")
    found = asyncio.run(_replayed(analysis.Replay(run_dir, overrides), updates))
    if as_json:
        click.echo(to_json([asdict(each) for each in found]))
    else:
        for each in found:
            _show(each)
    if not overrides and any(each.changed for each in found):
        sys.exit(1)


async def _replayed(replay: analysis.Replay, updates: bool) -> list[analysis.ReplayCheck]:
    return [each async for each in replay.everything(updates=updates)]


def _show(each: analysis.ReplayCheck) -> None:
    if each.left_out:
        said = f"{each.left_out:,} whose reward failed when it was asked are not asked again"
        click.echo(f"{each.what:<28} {said}")
    if each.changed == 0:
        click.echo(f"{each.what:<28} {each.count:>9,} compared, all as on record")
        return
    click.secho(f"{each.what:<28} {each.changed:>9,} of {each.count:,} differ", bold=True, nl=False)
    click.echo(f", by {each.mean_change:.4g} on average" if each.mean_change else "")
    for example in each.examples:
        click.echo(f"    {example}")
