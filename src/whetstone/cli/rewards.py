"""`whetstone rewards`: audit a reward for reward hacking, train a reward model, list rewards."""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import click

import whetstone.evaluation.audit
import whetstone.rewards
from whetstone import assembly, training
from whetstone.cli.check_output import print_check
from whetstone.cli.effects import allow_effects_option, call_tools_option, check_policy, report_refused
from whetstone.cli.judge_option import describe_usage, judge_option, read_judge, read_labeled
from whetstone.cli.rewards_rules import extract_rules_command, induce_metrics_command
from whetstone.errors import RecipeError
from whetstone.evaluation.check_result import Check, CheckStatus
from whetstone.recipe import Resolved, load_recipe
from whetstone.rewards.protocol import close_reward
from whetstone.strict_json import to_json
from whetstone.tools.sanitize_text import sanitize_text

if TYPE_CHECKING:
    from whetstone.cli.judge_option import Labeled
    from whetstone.evaluation.audit import Audit
    from whetstone.rewards import GeneratedReward
    from whetstone.rewards.judges import Judge

_MOST_TURNS = 60


@click.group("rewards")
def rewards_command() -> None:
    """Audit a reward; let a model write one, or rules and metrics; train a reward model; list rewards."""


rewards_command.add_command(extract_rules_command)
rewards_command.add_command(induce_metrics_command)


@rewards_command.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def list_rewards_command(as_json: bool) -> None:
    """List all built-in rewards with their descriptions."""
    descriptions = {
        name: (inspect.getdoc(part) or "").partition("\n\n")[0].replace("\n", " ")
        for name, part in whetstone.rewards.REWARDS.items()
    }
    if as_json:
        click.echo(to_json(descriptions))
        return
    for name, text in descriptions.items():
        click.secho(f"{name:<16}", bold=True, nl=False)
        click.echo(f" {text}")


@rewards_command.command()
@click.argument("recipe")
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option(
    "--model",
    "folder",
    required=True,
    type=click.Path(path_type=Path),
    help="Model folder; the reward head is written to it.",
)
@click.option(
    "--tasks",
    default=100,
    show_default=True,
    type=click.IntRange(min=5),
    help="Number of tasks; a fifth is held out for validation.",
)
@call_tools_option
@allow_effects_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def train_model(
    recipe: str,
    overrides: tuple[str, ...],
    folder: Path,
    tasks: int,
    call_tools: bool,
    allow_effects: bool,
    as_json: bool,
) -> None:
    """Train a reward model on RECIPE's tasks: episodes of the expert are preferred to those of impostors.

    Written to the model folder as `reward_head.json`; a recipe uses it with `reward: {name: reward_model, path:
    FOLDER}`.
    """
    resolved = load_recipe(recipe, overrides)
    tried = _audit(resolved, tasks, call_tools=call_tools, allow_effects=allow_effects)

    async def played() -> None:
        async for _ in tried.run_checks():
            break  # all have played by the first

    asyncio.run(played())
    pairs = tried.build_pairs()
    if len(pairs) < 5:
        raise RecipeError(
            f"{recipe}: {len(pairs)} tasks have a good and a bad episode; increase --tasks, or use an expert"
        )
    num_held_out = max(1, len(pairs) // 5)
    model = whetstone.rewards.RewardModel(folder)
    loss = model.fit([pair for of_task in pairs[num_held_out:] for pair in of_task])
    accuracy = model.pair_accuracy([pair for of_task in pairs[:num_held_out] for pair in of_task])
    path = model.save()
    report = {
        "path": str(path),
        "tasks": len(pairs) - num_held_out,
        "loss": loss,
        "accuracy": accuracy,
        "tried_on": num_held_out,
    }
    if as_json:
        click.echo(to_json(report))
    else:
        click.echo(f"{path}  validation accuracy {accuracy:.1%} on the pairs of {num_held_out} held-out tasks")


@rewards_command.command("audit")
@click.argument("recipe")
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--tasks", default=6, show_default=True, type=click.IntRange(min=1), help="Number of tasks.")
@call_tools_option
@allow_effects_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def audit_reward_command(
    recipe: str, overrides: tuple[str, ...], tasks: int, call_tools: bool, allow_effects: bool, as_json: bool
) -> None:
    """Audit the reward of RECIPE for reward hacking: whether a policy that does not solve the task is rewarded.

    An expert plays the tasks, and fifteen impostors: one that fails honestly, one that acts at random, one that is
    silent, gives up, guesses, calls tools forever, copies tool results, gives every answer, addresses the judge, sends
    garbage or nonsense, makes one move, stops immediately, or is truncated. The exit code is 1 if the reward can be
    fooled, or is the same for every episode.

    Tools are called for real only if they declare the effect `read`. `--call-tools` also calls tools without a declared
    effect, `--allow-effects` those with side effects. A task whose expert needs another tool is skipped.
    """
    resolved = load_recipe(recipe, overrides)
    tried = _audit(resolved, tasks, call_tools=call_tools, allow_effects=allow_effects)
    checks = asyncio.run(_run_audit(tried, as_json))
    bad = [each.name for each in checks if each.verdict is CheckStatus.FAIL]
    if as_json:
        report = {
            "recipe": resolved.name,
            "sound": not bad if tried.tried else None,
            "players": tried.summarize_players(),
            "checks": [asdict(each) for each in checks],
        }
        click.echo(to_json(report))
    else:
        _show(tried)
        click.echo(_verdict(tried, resolved.name, bad))
    sys.exit(1 if bad or not tried.tried else 0)


@rewards_command.command("write")
@click.argument("recipe")
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@judge_option
@click.option(
    "-o", "--output", required=True, type=click.Path(path_type=Path, dir_okay=False), help="File of the code."
)
@click.option("--description", help="Description of the task.  [default: title of the recipe]")
@click.option("--tasks", default=6, show_default=True, type=click.IntRange(min=1), help="Number of tasks.")
@click.option(
    "--episodes",
    "run_dir",
    type=click.Path(path_type=Path, file_okay=False),
    help="Run whose recorded episodes are added, labeled by their success.",
)
@click.option(
    "--template",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="File with code in which the model changes only the numbers.",
)
@click.option("--rounds", default=4, show_default=True, type=click.IntRange(min=1), help="Maximum number of proposals.")
@click.option(
    "--min-correlation",
    default=0.7,
    show_default=True,
    type=click.FloatRange(-1, 1),
    help="Minimum rank-biserial correlation with success.",
)
@call_tools_option
@allow_effects_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def write_reward_command(
    recipe: str,
    overrides: tuple[str, ...],
    judge: str,
    output: Path,
    description: str | None,
    tasks: int,
    run_dir: Path | None,
    template: Path | None,
    rounds: int,
    min_correlation: float,
    call_tools: bool,
    allow_effects: bool,
    as_json: bool,
) -> None:
    """Let a model write the code of a dense reward for RECIPE, test it and revise it (Text2Reward).

    An expert and impostors play tasks, as in `rewards audit`; whether an episode did its task is decided without the
    reward. Code is checked, run in the sandbox on all episodes, compared with their success, and audited together with
    the reward of the recipe. Each objection goes back to the model, which also criticizes each proposal and compares
    confused episodes. The exit code is 1 if no proposal is accepted; then no file is written.
    """
    if output.exists():
        raise RecipeError(f"{output}: exists; choose another name")
    resolved = load_recipe(recipe, overrides)
    writer = read_judge(judge)
    tried = _audit(resolved, tasks, call_tools=call_tools, allow_effects=allow_effects)
    stored = read_labeled(run_dir) if run_dir is not None else []
    about = description or str(resolved.recipe.title or resolved.name)
    options: dict[str, Any] = {"min_correlation": min_correlation, "rounds": rounds}
    if template is not None:
        options["template"] = template.read_text(encoding="utf-8")
    written, num_episodes = asyncio.run(_write(writer, about, tried, stored, options))
    if written.accepted:
        output.write_text(written.code.rstrip() + "\n", encoding="utf-8")
    part = resolved.recipe.reward
    named = {"name": "generated_code", "path": str(output), "outcome": {"name": part.name, **part.options}}
    report = {
        **asdict(written),
        "path": str(output) if written.accepted else None,
        "episodes": num_episodes,
        "reward": named,
        "judge": asdict(writer.meter),
    }
    if as_json:
        click.echo(to_json(report))
    else:
        for number, objection in enumerate(written.objections, 1):
            click.echo(f"proposal {number}: {' '.join(sanitize_text(objection).split()) or 'accepted'}")
        click.echo(describe_usage(writer))
        click.echo(
            f"{output}: correlation with success {written.correlation:.2f} in {num_episodes} episodes; read the file, "
            f"then set\nreward: {to_json(named)}"
            if written.accepted
            else f"nothing written: none of {written.rounds} proposals is accepted"
        )
    sys.exit(0 if written.accepted else 1)


async def _write(
    judge: Judge, description: str, tried: Audit, stored: Sequence[Labeled], options: Mapping[str, Any]
) -> tuple[GeneratedReward, int]:
    """Write a reward from audited and stored episodes; return (result, number of labeled episodes).

    Raises:
        RecipeError: If the episodes do not include a success and a failure.
    """

    async def check(code: str) -> str:
        with TemporaryDirectory() as folder:
            path = Path(folder) / "reward.py"
            path.write_text(code, encoding="utf-8")
            reward = whetstone.rewards.CodeReward(path=str(path), outcome=tried.reward)
        audit = replace(tried, reward=reward, tried=[])
        failed = [f"{each.name}: {each.said}" async for each in audit.run_checks() if each.verdict is CheckStatus.FAIL]
        return f"the audit of its sum with the reward fails: {'; '.join(failed)}" if failed else ""

    async for _ in tried.run_checks():
        break  # all have played by the first
    labeled = [(one.trajectory, one.task, one.deserved) for one in tried.tried if one.deserved is not None]
    labeled = [*labeled, *stored]
    if len({success for _, _, success in labeled}) < 2:
        raise RecipeError(
            f"{len(labeled)} labeled episodes have the same outcome; use a task source with an expert, "
            "increase --tasks, or add --episodes RUN"
        )
    try:
        written = await whetstone.rewards.write_reward(judge, description, labeled, check=check, **options)
    finally:
        await judge.close()
        await close_reward(tried.reward)
    return written, len(labeled)


def _audit(resolved: Resolved, tasks: int, *, call_tools: bool, allow_effects: bool) -> Audit:
    """Audit the reward of a recipe, and report the tools that are not called.

    Raises:
        WhetstoneError: If the recipe is invalid, or its environment is not played because of its side effects.
    """
    effects = training.tool_effects(resolved)
    calls = check_policy(effects, allow_effects=allow_effects, call_tools=call_tools)
    report_refused(calls, effects)
    settings = resolved.recipe.environment
    if settings.name in calls.refused(effects):
        raise RecipeError(f"nothing is audited: the environment {settings.name} is not played")
    source, make, reward = assembly.build_scoring_components(resolved, calls)
    turns = min(_MOST_TURNS, settings.max_turns)
    return whetstone.evaluation.audit.Audit(make, source, reward, tasks=tasks, max_turns=turns)


def _verdict(tried: Audit, name: str, bad: list[str]) -> str:
    """Format the last line of an audit.

    Args:
        tried: Result of the audit.
        name: Name of the reward.
        bad: Names of the checks that failed.
    """
    if not tried.tried:
        return "undecided: no task was played"
    if tried.constant_reward is not None:
        constant = f"the reward of {name} is constant: {tried.constant_reward:.3g} in all {len(tried.tried)} episodes"
        others = [check for check in bad if check != whetstone.evaluation.audit.REWARD_VARIES]
        return f"{constant}; it also fails: {', '.join(others)}" if others else constant
    return f"can be fooled: {', '.join(bad)}" if bad else f"the reward of {name} was not fooled"


async def _run_audit(tried: Audit, quiet: bool) -> list[Check]:
    checks = []
    async for each in tried.run_checks():
        checks.append(each)
        if not quiet:
            print_check(each)
    await close_reward(tried.reward)
    return checks


def _show(tried: Audit) -> None:
    click.echo(f"\n{'player':<20} {'solved':>8} {'reward if solved':>17} {'reward if not solved':>21} {'unscored':>9}")
    for row in tried.summarize_players():
        paid = ["" if row[key] is None else f"{row[key]:.3g}" for key in ("score_deserved", "score_undeserved")]
        click.echo(f"{row['player']:<20} {row['deserved']:>8.0%} {paid[0]:>17} {paid[1]:>21} {row['invalid']:>9.0%}")
