"""`whetstone replay`: recompute rewards, credit, evaluations and updates of a run from its record."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import asdict
from pathlib import Path

import click

from whetstone import analysis
from whetstone.cli import shell_completion
from whetstone.cli.unused_overrides import warn_unused_overrides
from whetstone.strict_json import to_json

_UNREAD = ("policy", "supervised", "rollout", "curriculum", "evaluation", "ablations")
"""Recipe keys that affect only sampling or earlier stages, so that a replay does not read them."""


@click.command("replay")
@click.argument(
    "run_dir", type=click.Path(path_type=Path, file_okay=False), shell_complete=shell_completion.run_folders
)
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--updates", is_flag=True,
              help="Also recompute the updates, from the earliest available checkpoint.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def replay_command(run_dir: Path, overrides: tuple[str, ...], updates: bool, as_json: bool) -> None:
    """Recompute the recorded results of RUN_DIR, without tool calls or sampling; nothing is written.

    If keys are changed (reward=my.module:mine), the differences are shown. Without changes there must be none: the exit
    code is 1 if a result differs from the record.
    """
    unread = _UNREAD if updates else (*_UNREAD, "reinforcement")
    warn_unused_overrides(
        overrides, unread, "recorded episodes are not sampled again" if updates else "no update is recomputed"
    )
    checks = asyncio.run(_replay(analysis.RunReplay(run_dir, overrides), updates))
    if as_json:
        click.echo(to_json([asdict(each) for each in checks]))
    else:
        for each in checks:
            _show(each)
    if not overrides and any(each.changed for each in checks):
        sys.exit(1)


async def _replay(replay: analysis.RunReplay, updates: bool) -> list[analysis.ReplayCheck]:
    return [each async for each in replay.recompute_all(updates=updates)]


def _show(each: analysis.ReplayCheck) -> None:
    if each.left_out:
        note = f"{each.left_out:,} with a failed reward are not recomputed"
        click.echo(f"{each.what:<28} {note}")
    if each.changed == 0:
        click.echo(f"{each.what:<28} {each.count:>9,} compared, all equal")
        return
    click.secho(f"{each.what:<28} {each.changed:>9,} of {each.count:,} differ", bold=True, nl=False)
    click.echo(f", by {each.mean_change:.4g} on average" if each.mean_change else "")
    for example in each.examples:
        click.echo(f"    {example}")
