"""`whetstone tasks`: show tasks, measure their difficulty, make new ones, score those that a run was trained on."""

from __future__ import annotations

import asyncio
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import click

import whetstone.environments
import whetstone.tasks
from whetstone import assembly, evaluation, record, training
from whetstone.analysis.task_scores import task_scores
from whetstone.atomic_write import write_text
from whetstone.cli.effects import add_permissions, allow_effects_option, call_tools_option, check_policy, report_refused
from whetstone.environments.protocol import Environment
from whetstone.errors import RecipeError
from whetstone.plugins import find_part, validate_options
from whetstone.recipe import Resolved, load_recipe, yaml_value
from whetstone.reporting import Progress
from whetstone.rewards.protocol import Reward, close_reward
from whetstone.strict_json import to_json
from whetstone.tasks.protocol import OPTIONAL, Source
from whetstone.tasks.task_dates import DateRange, select_dated_tasks
from whetstone.trajectory import Task

_SHOWN = 20


@click.group("tasks")
def tasks_command() -> None:
    """Show tasks; measure their difficulty; make new ones; score those that a run was trained on."""


@tasks_command.command("show")
@click.argument("source")
@click.argument("options", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("-n", "count", type=click.IntRange(min=1), default=3, show_default=True, help="Number of tasks.")
@click.option("--held-out", is_flag=True, help="Held-out tasks instead of training tasks.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line, including private data.")
def show_tasks_command(source: str, options: tuple[str, ...], count: int, held_out: bool, as_json: bool) -> None:
    """Show tasks of SOURCE, a task source by name, or `package.module:name`; options as KEY=VALUE."""
    if source.endswith((".yaml", ".yml")):
        named = load_recipe(source).recipe.tasks
        like = " ".join([named.source, *(f"{key}={value}" for key, value in named.options.items())])
        raise RecipeError(f"{source}: is a recipe; its tasks are shown by `whetstone tasks show {like}`")
    part = find_part("task source", source, list_sources(), optional=OPTIONAL)
    values = read_options(options)
    dates = DateRange(*(values.pop(key, None) for key in ("date", "since", "until", "held_out_since", "cutoff")))
    task_source = part(**validate_options(part, values))
    if dates.column is not None:
        click.echo(select_dated_tasks(task_source, dates), err=True)
    selected = list(task_source.held_out(count)) if held_out else [task_source.task(index) for index in range(count)]
    for task in selected:
        if as_json:
            row = {"id": task.id, "prompt": task.prompt, "tags": dict(task.tags), "private": dict(task.private)}
            click.echo(to_json(row, other=str))
            continue
        click.secho(task.id, bold=True, nl=False)
        click.echo(f"  {', '.join(f'{name}: {value}' for name, value in task.tags.items())}")
        click.echo(f"  {task.prompt or '(the environment provides the prompt)'}")
        for name, value in task.private.items():
            written = json.dumps(value, ensure_ascii=False, default=str)
            click.secho(f"    {name}: {written if len(written) <= 100 else written[:99] + '…'}", dim=True)


@tasks_command.command("score")
@click.argument("run_dir", type=click.Path(path_type=Path, file_okay=False))
@click.option("--windows", type=click.IntRange(min=2), help="Points of a curve  [number of passes over the tasks].")
@click.option(
    "--fraction",
    type=click.FloatRange(min=0, max=1, min_open=True),
    default=1 / 6,
    show_default="a sixth",
    help="Fraction of the tasks to select, the best first.",
)
@click.option("--min-score", type=float, help="Select all tasks with at least this score instead (0.6 in the paper).")
@click.option("--output-file", type=click.Path(path_type=Path, dir_okay=False), help="File for the selected tasks.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def score_tasks_command(
    run_dir: Path,
    windows: int | None,
    fraction: float,
    min_score: float | None,
    output_file: Path | None,
    as_json: bool,
) -> None:
    """Score the tasks of RUN_DIR by the alignment of their success curve with the mean curve; select the best.

    The output file is read by `curriculum: {name: task_subset, path: FILE}`; `with=limr` sets everything else.
    """
    record.run_recipe(run_dir)  # raises if it is not a run
    scores = task_scores(run_dir, windows=windows)
    best = scores.select_best(share=fraction, at_least=min_score)
    if not best:
        raise RecipeError(
            f"--min-score {min_score:g}: no task has this score; the best has {scores.tasks[0].score:.3g}"
        )
    if output_file is not None:
        write_text(output_file, json.dumps(best))
    if as_json:
        rows = [asdict(task) for task in scores.tasks]
        click.echo(to_json({"chosen": best, "dropped": scores.dropped, "tasks": rows}))
        return
    for task in scores.tasks[:_SHOWN]:
        click.echo(f"{task.score:7.3f}  {task.index:>6}  {task.id}  {' '.join(f'{r:.2f}' for r in task.curve)}")
    more = len(scores.tasks) - _SHOWN
    click.echo(f"{f'… and {more} more; ' if more > 0 else ''}{len(best)} of {len(scores.tasks)} tasks selected")
    if scores.dropped:
        click.echo(f"{scores.dropped} tasks were sampled too rarely for a score")
    if output_file is not None:
        click.echo(f"wrote {output_file}; whetstone train RECIPE with=limr curriculum.path={output_file}")


@tasks_command.command("difficulty")
@click.argument("recipe")
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--tasks", default=8, show_default=True, type=click.IntRange(min=1), help="Number of held-out tasks.")
@click.option(
    "--episodes", default=16, show_default=True, type=click.IntRange(min=1), help="Random episodes per measured value."
)
@click.option(
    "--lookahead",
    default=1,
    show_default=True,
    type=click.IntRange(1, 4),
    help="Actions that a greedy step enumerates.",
)
@click.option("--width", default=6, show_default=True, type=click.IntRange(min=1), help="Candidates of an action.")
@click.option("--max-turns", default=20, show_default=True, type=click.IntRange(min=1))
@click.option("--policy", help="Also evaluate a policy: `recipe` (the recipe's, untrained), a run, or a model folder.")
@call_tools_option
@allow_effects_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def measure_difficulty_command(
    recipe: str,
    overrides: tuple[str, ...],
    tasks: int,
    policy: str | None,
    call_tools: bool,
    allow_effects: bool,
    as_json: bool,
    **options: int,
) -> None:
    """Measure the difficulty of RECIPE's held-out tasks before training.

    The success of random players, and of greedy steps on the values of the random policy: an action is chosen by the
    mean reward of random episodes after it. Tasks that greedy steps solve need little exploration; tasks that neither
    solves need demonstrations, easier tasks, a denser reward or a novelty bonus.
    """
    resolved, permission = load_recipe(recipe, overrides), {"call_tools": call_tools, "allow_effects": allow_effects}
    source, make, reward = _build_components(resolved, problem="nothing is measured", **permission)
    probe = evaluation.DifficultyProbe(make, reward, **options)

    async def run() -> list[evaluation.TaskDifficulty]:
        measured = [await probe.measure(task) for task in source.held_out(tasks)]
        await close_reward(reward)
        return measured

    rows = asyncio.run(run())
    if policy is not None:
        changes = add_permissions((*overrides, f"evaluation.episodes={tasks}"), allow_effects)
        solved: dict[str, float] = {}
        training.evaluate_agent(
            training.load_agent(recipe, changes, None if policy == "recipe" else policy),
            seed=None,
            record=None,
            progress=Progress(quiet=True),
            on_group=lambda group: solved.update(
                {group.task.id: fmean(each.solved for each in group.trajectories)} if group.trajectories else {}
            ),
        )
        rows = [replace(row, policy=solved.get(row.task)) for row in rows]
    if as_json:
        click.echo(to_json({"episodes": probe.num_played, "tasks": [asdict(row) for row in rows]}))
        return
    by_kind = defaultdict(list)
    for row in rows:
        by_kind[row.kind].append(row)
    click.echo(f"{'kind':<24} {'tasks':>6} {'random':>8} {'greedy':>8}{' policy' if policy else '':>9}")
    for kind, of_kind in [*(by_kind.items() if len(by_kind) > 1 else ()), ("all", rows)]:
        played = [row.policy for row in of_kind if row.policy is not None]
        mean = f"{fmean(played):8.0%}" if played else f"{'':>8}"
        random, greedy = fmean(row.random for row in of_kind), fmean(row.greedy for row in of_kind)
        click.echo(f"{kind:<24} {len(of_kind):>6} {random:8.0%} {greedy:8.0%} {mean}")
    click.echo(f"{probe.num_played} episodes without a model")


@tasks_command.command("explore")
@click.argument("recipe")
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option(
    "--output-file",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    help="File for the tasks, one JSON object per line.",
)
@click.option(
    "--starts", default=4, show_default=True, type=click.IntRange(min=1), help="Initial states: tasks of RECIPE."
)
@click.option("--episodes", default=50, show_default=True, type=click.IntRange(min=1), help="Episodes per start.")
@click.option("--max-actions", default=6, show_default=True, type=click.IntRange(min=1), help="Calls of an episode.")
@click.option(
    "--max-random",
    default=0.1,
    show_default=True,
    type=click.FloatRange(0, 1),
    help="Maximum fraction of random players that reach the state of a task.",
)
@click.option("--seed", default=0, show_default=True)
@call_tools_option
@allow_effects_option
def explore_tasks_command(
    recipe: str,
    overrides: tuple[str, ...],
    output_file: Path,
    starts: int,
    episodes: int,
    max_actions: int,
    max_random: float,
    seed: int,
    call_tools: bool,
    allow_effects: bool,
) -> None:
    """Make tasks for the environment of RECIPE from the states that curious play reaches.

    The initial states are those of RECIPE's training tasks; their prompts and goals are not used. The environment's
    verdict must have `state`. A task asks for a state; it is rejected if its calls do not reach the state again, if
    random players reach it, or if another task has it. Train on the file with `reward=state`.
    """
    resolved, permission = load_recipe(recipe, overrides), {"call_tools": call_tools, "allow_effects": allow_effects}
    source, make, reward = _build_components(resolved, problem="nothing is explored", **permission)
    explorer = evaluation.TaskExplorer(make, max_actions=max_actions, max_random=max_random, seed=seed)

    async def run() -> list[Task]:
        tasks = [task for k in range(starts) for task in await explorer.explore_tasks(source.task(k), episodes)]
        await close_reward(reward)
        return tasks

    tasks = asyncio.run(run())
    rows = [
        {"id": task.id, "prompt": task.prompt, "tags": dict(task.tags), "private": dict(task.private)} for task in tasks
    ]
    write_text(output_file, "".join(f"{to_json(row, other=str)}\n" for row in rows))
    click.echo(f"{len(tasks)} tasks from {starts * episodes} episodes: {output_file}")
    for gate, count in explorer.rejected.most_common():
        click.echo(f"{count:6} episodes without a task: {gate}")
    for depth, count in sorted(Counter(len(task.private["solution"]) for task in tasks).items()):
        click.echo(f"{count:6} tasks with {depth} call{'s' if depth > 1 else ''}")


def _build_components(
    resolved: Resolved, *, problem: str, call_tools: bool, allow_effects: bool
) -> tuple[Source, Callable[[], Environment], Reward]:
    """Build task source, environment and reward of a recipe whose tools are called only with permission.

    Raises:
        RecipeError: If the environment itself is not permitted; the message starts with `problem`.
    """
    effects = training.tool_effects(resolved)
    calls = check_policy(effects, allow_effects=allow_effects, call_tools=call_tools)
    report_refused(calls, effects)
    name = resolved.recipe.environment.name
    if name in calls.refused(effects):
        raise RecipeError(f"{problem}: the environment {name} is not played")
    return assembly.build_scoring_components(resolved, calls)


def list_sources() -> dict[str, Any]:
    """Return all built-in task sources by name."""
    return {**whetstone.tasks.SOURCES, **whetstone.environments.TASKS_OF_WORLDS}


def read_options(options: Sequence[str]) -> dict[str, Any]:
    """Parse KEY=VALUE options, with values in YAML.

    Raises:
        RecipeError: If an option does not have this form.
    """
    read = {}
    for option in options:
        key, equals, value = option.partition("=")
        if not equals:
            raise RecipeError(f"{option}: an option must have the form KEY=VALUE")
        read[key] = yaml_value(value, option)
    return read
