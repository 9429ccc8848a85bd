"""Option `--judge` of commands that query a model, and labeled episodes of a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

import whetstone.rewards
from whetstone import analysis
from whetstone.errors import RecipeError
from whetstone.recipe.loader import yaml_value

if TYPE_CHECKING:
    from whetstone.rewards.judges import Judge
    from whetstone.trajectory import Task, Trajectory

    Labeled = tuple[Trajectory, Task, bool]

judge_option = click.option(
    "--judge",
    required=True,
    metavar="JUDGE",
    help="Model to query, as in a recipe: '{name: endpoint, url: URL, model: NAME}', '{name: local, path: FOLDER}'.",
)


def read_judge(text: str) -> Judge:
    """Build the judge of the option `--judge`.

    Raises:
        RecipeError: If the text is not YAML, or names no judge.
    """
    named = yaml_value(text, f"--judge={text}")
    try:
        return whetstone.rewards.make_judge(named)
    except (RecipeError, ValueError) as error:
        raise RecipeError(f"--judge: {error}") from None


def describe_usage(judge: Judge) -> str:
    """Format the requests, tokens and cost of a judge in one line."""
    meter = judge.meter
    tokens = f"{meter.prompt_tokens:,} prompt tokens, {meter.completion_tokens:,} completion tokens"
    return f"judge: {meter.requests} requests, {meter.cached} from the cache; {tokens}; cost {meter.cost:.4g}"


def read_labeled(run_dir: Path) -> list[Labeled]:
    """Read the recorded episodes of a run that have a success or a failure.

    Raises:
        RunDirectoryError: If there is no run, or its record is damaged.
    """
    replay = analysis.RunReplay(run_dir)
    groups = [replay.load_group(number) for update in replay.record.consumed.values() for number in update]
    return [
        (each, group.task, each.score.success)
        for group in groups
        for each in group.trajectories
        if each.score is not None and each.score.success is not None
    ]
