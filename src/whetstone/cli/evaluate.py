"""`whetstone evaluate`: success on held-out tasks, with intervals, of any agent."""

from __future__ import annotations

import math
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import whetstone.chat
from whetstone import evaluation, training
from whetstone.atomic_write import write_text
from whetstone.cli import shell_completion
from whetstone.cli.deprecation_notices import print_notices
from whetstone.cli.effects import add_permissions, allow_effects_option, ask_once
from whetstone.cli.format_message import show_tools
from whetstone.cli.unused_overrides import LEARNING, warn_unused_overrides
from whetstone.errors import RecipeError
from whetstone.failure_causes import format_causes
from whetstone.reporting import Progress
from whetstone.strict_json import to_json
from whetstone.tool_calls import describe_failing_tools
from whetstone.tools.sanitize_text import sanitize_text
from whetstone.trajectory import Group

if TYPE_CHECKING:
    from whetstone.evaluation import Evaluation, MemberResult


_FEW = 100
_HOST = re.compile(r"[\w.-]+:\d+(?:/.*)?|localhost(?:/.*)?")
"""Pattern of a server address without a scheme."""
_OF_GROUPS = (
    "rollout.strategy", "rollout.group_size", "rollout.temperature", "rollout.budget_allocation",
    "rollout.start_states", "rollout.action_mask", "rollout.replay", "rollout.trajectory_filters",
    "rollout.dynamic_sampling", "rollout.group_timeout_seconds",
)  # fmt: skip
"""Recipe keys of sampling in training, which evaluations do not read."""


@click.command("evaluate")
@click.argument("run_or_recipe", shell_complete=shell_completion.recipes_or_runs)
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...", shell_complete=shell_completion.complete_overrides)
@click.option("--policy", help="Policy to evaluate instead of the recipe's: a run, a model folder, a URL such as "
              "http://host:8000/v1, or a player: expert, person, package.module:function.")  # fmt: skip
@click.option("--opponent", "opponents", multiple=True, metavar="NAME", help="Play every seat of a game against this "
              "opponent; repeatable: script, person, package.module:function, a run, checkpoint or model folder, or "
              "step-N of the run.")  # fmt: skip
@click.option("--model", default="", help="Name of the model on the server.")
@click.option("--api-key-env", default="", help="Environment variable with the API key.")
@click.option("--episodes", type=click.IntRange(min=1), help="Number of held-out tasks [the recipe's].")
@click.option("--samples", type=click.IntRange(min=1), help="Episodes per task, for pass@k [the recipe's].")
@click.option("--temperature", type=click.FloatRange(min=0), help="Sampling temperature; 0 is greedy [the recipe's].")
@click.option("--seed", type=click.IntRange(min=0), help="Random seed for sampling [the recipe's].")
@click.option(
    "--output-dir",
    type=click.Path(path_type=Path),
    help="Save episodes to this directory; rerunning the command resumes from them.",
)
@click.option(
    "--lm-eval",
    type=click.Path(path_type=Path),
    help="Write results to this file in the format of lm-evaluation-harness.",
)
@click.option("--inspect", type=click.Path(path_type=Path), help="Write an Inspect log with all episodes to this file.")
@allow_effects_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def evaluate_command(
    run_or_recipe: str,
    overrides: tuple[str, ...],
    policy: str | None,
    opponents: tuple[str, ...],
    model: str,
    api_key_env: str,
    episodes: int | None,
    samples: int | None,
    temperature: float | None,
    seed: int | None,
    output_dir: Path | None,
    lm_eval: Path | None,
    inspect: Path | None,
    allow_effects: bool,
    as_json: bool,
) -> None:
    """Evaluate RUN_OR_RECIPE: a run directory at its last checkpoint, or the initial policy of a recipe.

    The exit code is 1 if too many episodes have no score.
    """
    remote = policy is not None and policy.startswith(("http://", "https://"))
    if policy is not None and _HOST.fullmatch(policy) and not Path(policy).exists():
        path = "" if "/" in policy else "/v1"
        raise RecipeError(f"--policy {policy}: a URL starts with http:// or https://: --policy http://{policy}{path}")
    for option, value in (("--model", model), ("--api-key-env", api_key_env)):
        if value and not remote:
            raise RecipeError(f"{option}: requires --policy http://…")
    if output_dir is not None:
        training.EvaluationRecord(output_dir).check()
    for option, file in (("--lm-eval", lm_eval), ("--inspect", inspect)):
        if file is not None and file.is_dir():
            raise RecipeError(f"{option} {file}: is a folder; name a file")
        if file is not None and opponents:
            raise RecipeError(f"{option}: writes one evaluation; omit it, or omit --opponent")
    unread = (*LEARNING, *_OF_GROUPS, *(("policy",) if policy is not None or Path(run_or_recipe).is_dir() else ()))
    warn_unused_overrides(overrides, unread, "an evaluation plays held-out tasks with the present weights")
    settings = {"episodes": episodes, "samples": samples, "temperature": temperature}
    changes = [f"evaluation.{key}={value}" for key, value in settings.items() if value is not None]
    agent = training.load_agent(
        run_or_recipe,
        add_permissions((*overrides, *changes), allow_effects),
        _endpoint(policy, model, api_key_env) if remote and policy else policy,
    )
    print_notices(agent.resolved)
    record = training.EvaluationRecord(output_dir) if output_dir is not None else None
    progress = Progress(quiet=as_json or not sys.stderr.isatty())
    groups: list[Group] = []
    log, ask = lambda line: click.echo(line, err=True), ask_once()
    if opponents:
        results, protocol = training.evaluate_opponents(
            agent, opponents, seed=seed, record=record, progress=progress, log=log, ask=ask
        )
        _note_missing_tasks(episodes, protocol)
        if as_json:
            listed = {name: each.to_json() for name, each in results.items()}
            click.echo(to_json({"opponents": listed, "protocol": protocol}))
        else:
            _show_opponents(results, protocol)
        for each in results.values():
            _require_scores(each)
        return
    result, protocol = training.evaluate_agent(
        agent,
        seed=seed,
        record=record,
        progress=progress,
        log=log,
        on_group=groups.append if inspect is not None else None,
        ask=ask,
    )
    _note_missing_tasks(episodes, protocol)
    name = agent.resolved.name
    if lm_eval is not None:
        lm_eval.parent.mkdir(parents=True, exist_ok=True)
        write_text(lm_eval, to_json(evaluation.harness_json(name, result, protocol), indent=1) + "\n")
    if inspect is not None:
        inspect.parent.mkdir(parents=True, exist_ok=True)
        write_text(inspect, to_json(evaluation.inspect_json(name, result, protocol, groups), indent=1) + "\n")
    if as_json:
        click.echo(to_json({**result.to_json(), "protocol": protocol}))
    else:
        _show(result, protocol)
    _require_scores(result)


def _note_missing_tasks(episodes: int | None, protocol: Mapping[str, Any]) -> None:
    """Print a line if the source has fewer held-out tasks than requested."""
    count = protocol["tasks"]["count"]
    if episodes is not None and count < episodes:
        click.echo(f"whetstone: {episodes} held-out tasks were requested, the source has {count}", err=True)


def _require_scores(result: Evaluation) -> None:
    """Exit with code 1 if too many episodes of a result have no score."""
    if not result.sound:
        problem = f"{result.invalid} of {result.episodes + result.invalid} episodes have no score"
        why = f"too many for a valid result (more than {evaluation.MOST_INVALID:.0%})"
        click.echo(f"whetstone: {problem}, {why}: {format_causes(result.causes)}", err=True)
        sys.exit(1)


def _endpoint(url: str, model: str, api_key_env: str) -> whetstone.chat.ChatEndpoint:
    if not model:
        raise RecipeError("--policy is a URL: also pass --model NAME")
    if api_key_env and api_key_env not in os.environ:
        raise RecipeError(f"--api-key-env: the environment variable {api_key_env} is not set")
    return whetstone.chat.ChatEndpoint(url, model, key=os.environ.get(api_key_env, "") if api_key_env else "")


def _show_opponents(results: Mapping[str, Evaluation], protocol: dict[str, Any]) -> None:
    """Print success and mean reward against each opponent, over all seats and in each seat."""
    for name, result in results.items():
        click.secho(f"against {sanitize_text(name)}", bold=True)
        rows: list[tuple[str, Evaluation | MemberResult]] = [("all seats", result)]
        rows += [(f"as {seat}", each) for seat, each in result.seats.items()]
        for label, each in rows:
            (low, high), (least, most) = each.interval, each.reward_interval
            click.echo(
                f"  {label:<22} success {each.success:6.1%}  ({low:.0%} to {high:.0%})"
                f"  reward {each.reward:.3f}  ({least:.3f} to {most:.3f})  {each.episodes} games"
            )
    _show_protocol(protocol)


def _show(result: Evaluation, protocol: dict[str, Any]) -> None:
    for line in describe_failing_tools(result.tools):
        click.secho(sanitize_text(line), bold=True)
    click.echo(training.run_headline(result.to_json()))
    if result.tasks:
        few = f"; {result.tasks} tasks are few" if result.tasks < _FEW else ""
        click.echo(f"  the interval is over {result.tasks} tasks, because episodes of a task are correlated{few}")
    for tag, values in result.tags.items():
        for value, rate in values.items() if len(values) > 1 or tag == "kind" else ():
            low, high = rate.interval
            name = value if tag == "kind" else f"{tag} {value}"
            click.echo(f"  {name:<22} {rate.success:6.1%}  ({low:.0%} to {high:.0%}, {rate.episodes} episodes)")
    well_formed = "" if result.well_formed_calls is None else f"  well-formed calls {result.well_formed_calls:.1%}"
    productivity = "" if result.tool_productivity is None else f"  solved per call {result.tool_productivity:.2f}"
    cost = f"  cost {result.cost:.3g}" if result.cost else ""
    click.echo(
        f"turns {result.turns:.2f}  tool calls {result.tool_calls:.2f}"
        f"  tokens {result.action_tokens:.1f}{well_formed}{productivity}{cost}"
    )
    click.echo(
        f"reward  {result.reward:.3f}  " + "  ".join(f"{name} {value:.3f}" for name, value in result.parts.items())
    )
    click.echo("ended   " + "  ".join(f"{reason} {share:.1%}" for reason, share in result.ended.items()))
    if result.tools:
        show_tools(result.tools)
    if result.failures:
        click.echo("failed  " + "  ".join(f"{reason} {share:.1%}" for reason, share in result.failures.items()))
    for name, of_k in (("pass@", result.pass_at), ("pass^", result.pass_hat), ("maj@", result.majority)):
        if len(result.pass_at) > 1 and of_k:
            click.echo("  ".join(f"{name}{k} {value:.1%}" for k, value in of_k.items() if not math.isnan(value)))
    for name, of_k in (("turns", result.success_by_turn), ("attempts", result.success_by_attempt)):
        if of_k:
            click.echo(f"solved within {name}: " + "  ".join(f"{k} {value:.1%}" for k, value in of_k.items()))
    if result.success_by_turn and not math.isnan(result.first_answer_tokens):
        click.echo(f"tokens to the first answer {result.first_answer_tokens:.1f}")
    sure = result.calibration
    if sure is not None:
        click.echo(
            f"sure    {sure.mean_confidence:.1%} on average in {sure.said} episodes"
            f"  ECE {sure.expected_error:.3f}  Brier {sure.brier:.3f}  AUROC {sure.auroc:.3f}"
        )
    strategy = protocol["strategy"]
    if strategy:
        spent = "  ".join(f"{name.replace('_', ' ')} {value:.1f}" for name, value in result.spent.items())
        click.echo(f"by      {strategy['name']}, on a task: {spent}")
        if result.selection:
            selection = "  ".join(f"{name.replace('_', ' ')} {value:.1%}" for name, value in result.selection.items())
            click.echo(f"        {selection}")
    _show_protocol(protocol)


def _show_protocol(protocol: Mapping[str, Any]) -> None:
    """Print the settings that determine an evaluation in one line."""
    click.secho(
        f"agent   {protocol['agent']}  seed {protocol['seed']}  temperature {protocol['temperature']:g}"
        f"  tasks {protocol['tasks']['ids']}  whetstone {protocol['whetstone']}",
        dim=True,
    )
