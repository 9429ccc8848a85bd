"""`whetstone rewards rules` and `rewards metrics`: rules from preference pairs, metrics from comments."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

import whetstone.rewards
from whetstone.chat import Message
from whetstone.cli.judge_option import describe_usage, judge_option, read_judge
from whetstone.data.conversations import read_conversation
from whetstone.data.preferences import read_preference
from whetstone.data.row_readers import Row, read_all
from whetstone.errors import DataError
from whetstone.recipe.loader import yaml_value
from whetstone.rewards.judge_rewards.judge_input import format_judged_message
from whetstone.seeding import derive_random
from whetstone.strict_json import to_json
from whetstone.tools.sanitize_text import sanitize_text

if TYPE_CHECKING:
    from whetstone.rewards.judges import Judge

Example = TypeVar("Example")
Result = TypeVar("Result")

_held_out_option = click.option(
    "--held-out",
    default=0.25,
    show_default=True,
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    help="Fraction of rows that are used only for the test.",
)
_seed_option = click.option("--seed", default=0, show_default=True, help="Seed of the choice of held-out rows.")
_output_option = click.option(
    "-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="Recipe layer to write, with the reward."
)


@click.command("rules")
@click.argument("pairs", type=click.Path(path_type=Path))
@judge_option
@click.option("--max-rules", default=20, show_default=True, type=click.IntRange(min=1), help="Maximum number of rules.")
@_held_out_option
@_seed_option
@_output_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def extract_rules_command(
    pairs: Path, judge: str, max_rules: int, held_out: float, seed: int, output: Path | None, as_json: bool
) -> None:
    """Extract rules from the preference pairs of a file, and test them on held-out pairs (AutoRule).

    PAIRS has rows with `chosen` and `rejected`. The judge explains each training pair by rules and merges them. For
    both sides of each held-out pair it decides which rules they satisfy. Agreement is the fraction of held-out pairs
    whose chosen side satisfies more rules; a tie counts half.
    """
    _check_output(output)
    train, test = _split_rows(pairs, held_out, seed, _read_pair)
    model = read_judge(judge)

    async def extract() -> tuple[list[str], Any]:
        rules = await whetstone.rewards.extract_rules(model, train, max_rules=max_rules)
        if not rules:
            raise DataError(f"{pairs}: the judge names no rule for {len(train)} pairs; use another judge")
        return rules, await whetstone.rewards.measure_agreement(model, rules, test)

    rules, agreement = _run(model, extract())
    _write_layer(output, judge, rules)
    report = {"rules": rules, "rate": agreement.rate, "p_value": agreement.p_value, **asdict(agreement)}
    report |= {"training_pairs": len(train), "judge": asdict(model.meter)}
    if as_json:
        click.echo(to_json(report))
        return
    for rule in rules:
        better, worse = agreement.by_rule[rule]
        click.echo(f"+{better} −{worse}  {' '.join(sanitize_text(rule).split())}")
    click.echo(
        f"agreement with {agreement.pairs} held-out pairs: {agreement.rate:.1%} ({agreement.agreed} agree, "
        f"{agreement.opposed} disagree; chance: p = {agreement.p_value:.3g}); "
        f"{len(rules)} rules from {len(train)} pairs"
    )
    click.echo(describe_usage(model))


@click.command("metrics")
@click.argument("comments", type=click.Path(path_type=Path))
@judge_option
@click.option("--max-metrics", default=10, show_default=True, type=click.IntRange(min=1), help="Maximum number.")
@_held_out_option
@_seed_option
@_output_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def induce_metrics_command(
    comments: Path, judge: str, max_metrics: int, held_out: float, seed: int, output: Path | None, as_json: bool
) -> None:
    """Turn comments on episodes into named metrics, and test them on held-out comments (AutoLibra).

    COMMENTS has rows with a conversation and a column `comment`. Coverage is the fraction of aspects of held-out
    comments that a metric covers, redundancy the fraction of metrics found in an episode that its comment does not
    mention.
    """
    _check_output(output)
    train, test = _split_rows(comments, held_out, seed, _read_comment)
    model = read_judge(judge)

    async def induce() -> tuple[list[Any], Any]:
        metrics = await whetstone.rewards.induce_metrics(model, train, max_metrics=max_metrics)
        if not metrics:
            raise DataError(f"{comments}: the judge finds no metric in {len(train)} comments; use another judge")
        return metrics, await whetstone.rewards.measure_coverage(model, metrics, test)

    metrics, result = _run(model, induce())
    _write_layer(output, judge, [each.rule_text for each in metrics])
    report = {"metrics": [asdict(each) for each in metrics], "coverage": result.aspect_coverage}
    report |= {"redundancy": result.trait_redundancy, **asdict(result), "judge": asdict(model.meter)}
    if as_json:
        click.echo(to_json(report))
        return
    for each in metrics:
        traits, matched = result.by_metric[each.name]
        click.echo(f"{matched} of {traits} mentioned  {' '.join(sanitize_text(each.rule_text).split())}")
    click.echo(
        f"{len(test)} held-out comments: coverage {result.aspect_coverage:.1%} of {result.aspects} aspects, redundancy "
        f"{result.trait_redundancy:.1%} of {result.traits} traits"
    )
    click.echo(describe_usage(model))


def _split_rows(
    path: Path, held_out: float, seed: int, read: Callable[[Row], Example]
) -> tuple[list[Example], list[Example]]:
    """Read the rows of a file and split them into training and held-out rows.

    Raises:
        DataError: If rows are invalid, or fewer than two.
    """
    rows, _ = read_all(path, lambda row: [read(row)])
    if len(rows) < 2:
        raise DataError(f"{path}: {len(rows)} rows; at least 2 are required, one of them held out")
    derive_random(seed, "held out").shuffle(rows)
    num_held_out = min(len(rows) - 1, max(1, round(held_out * len(rows))))
    return rows[num_held_out:], rows[:num_held_out]


def _read_pair(row: Row) -> tuple[str, str, str]:
    preference = read_preference(row)
    if len(preference.answers) < 2:
        raise row.error('a rated single; a pair is required ("chosen" and "rejected")')
    (better, _), (worse, _) = preference.answers
    sides = (
        better.messages[: preference.shared],
        better.messages[preference.shared :],
        worse.messages[preference.shared :],
    )
    task, chosen, rejected = map(_format_messages, sides)
    return task, chosen, rejected


def _read_comment(row: Row) -> tuple[str, str]:
    comment = row.columns.get("comment")
    if not isinstance(comment, str) or not comment.strip():
        raise row.error('no text in the column "comment"')
    return _format_messages(read_conversation(row, used=["comment"]).messages), comment


def _format_messages(messages: Sequence[Message]) -> str:
    return "\n".join(map(format_judged_message, messages))


def _run(judge: Judge, work: Coroutine[Any, Any, Result]) -> Result:
    async def closing() -> Result:
        try:
            return await work
        finally:
            await judge.close()

    return asyncio.run(closing())


def _check_output(output: Path | None) -> None:
    if output is not None and output.exists():
        raise DataError(f"{output}: exists; choose another name")


def _write_layer(output: Path | None, judge: str, rules: Sequence[str]) -> None:
    """Write a recipe layer with the reward `rules`; JSON is valid YAML."""
    if output is not None:
        reward = {"name": "rules", "judge": yaml_value(judge, f"--judge={judge}"), "rules": list(rules)}
        output.write_text(f"reward: {to_json(reward)}\n", encoding="utf-8")
