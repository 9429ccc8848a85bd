"""Do the parts of a recipe go together? What one reads, another has to produce; what one says, somebody has to read.

Easy to get wrong: parts that do not go together mostly run all the same, and teach nothing. So each pair that is known
to be at odds is refused here, with the key that would mend it.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any

from whetstone.algorithms import ADVANTAGES, columns_of, has_ratio_to_sampler, level_of
from whetstone.assembly.column_requirements import unmet
from whetstone.contracts import fulfils
from whetstone.environments import Environment
from whetstone.environments.protocol import HoldsTools, Judges
from whetstone.errors import CreditError, TaskError, did_you_mean
from whetstone.learning.columns import STATE_VALUES, Column, RunCapabilities, empty_column
from whetstone.learning.credit import LEVELS, CreditParts
from whetstone.learning.losses import FORWARD_COLUMNS
from whetstone.learning.sequence_logprobs import OF_SUMS, sums_level
from whetstone.learning.trial import try_estimator, try_loss
from whetstone.plugins import unbound
from whetstone.recipe import Resolved
from whetstone.recipe.settings import DEFAULT_ADVANTAGE
from whetstone.rewards import Composed, Reward, verdict
from whetstone.rewards.protocol import ChecksTask, NamesTools, private_of
from whetstone.tasks import Source

_ALONE = ("independent", "self_play")
"""Strategies whose groups may be of one."""
_PEER_COLUMNS = {
    "logprobs": "learner_logprobs", "log_probs": "learner_logprobs", "log_prob": "learner_logprobs",
    "old_log_probs": "old_logprobs", "old_log_prob": "old_logprobs", "rollout_log_probs": "sampler_logprobs",
}  # fmt: skip
"""Our names of columns that other libraries name differently."""


def check_needs(
    resolved: Resolved,
    credit: CreditParts,
    losses: Mapping[str, Callable[..., Any]],
    run: RunCapabilities,
    columns: Mapping[str, Column],
) -> None:
    """Refuse a recipe whose estimators or losses read what the run does not produce.

    Args:
        losses: The objective and the functions of `loss_terms`, by the recipe key.
        columns: Those it adds to ours, by name.

    Raises:
        RecipeError: Says what is read, by whom, and what would provide it.
    """
    given = {
        "advantage_transforms": {"advantages"},
        "objective": FORWARD_COLUMNS | OF_SUMS,
        "loss_terms": FORWARD_COLUMNS,
    }
    for key, function in (*credit.every(), *losses.items()):
        section = key.partition(".")[0]
        asked = [name for name in columns_of(function) if name not in given.get(section, ())]
        for column, who in unmet(asked, run, columns):
            name = getattr(unbound(function), "__name__", section)
            if inspect.signature(function).parameters[column].default is not inspect.Parameter.empty:
                who = f"it has a default value: make it an option by a * before it, `{name}(…, *, {column}=…)`"
            other = did_you_mean(_PEER_COLUMNS.get(column, column), FORWARD_COLUMNS if key in losses else ())
            raise resolved.error(key, f"{name} reads {column}{other}, which this run does not produce; {who}")
        for added in (columns[name] for name in asked if name in columns):
            wanted = level_of(function, added.name)
            if key not in losses and wanted != added.level:
                said = f"reads {added.name} as one number a {wanted}, and it is one a {added.level}"
                raise resolved.error(key, f"{said}: Per{added.level.capitalize()}")
        try_on_nothing(resolved, key, function)
    level = level_of(credit.advantage)
    for k, modulate in enumerate(credit.advantage_transforms):
        wanted = level_of(modulate, "advantages")
        if LEVELS.index(wanted) < LEVELS.index(level):
            said = f"works on one advantage a {wanted}, but in front of it there is one a {level}"
            raise resolved.error(f"advantage_transforms.{k}", said)
        level = wanted


def try_on_nothing(resolved: Resolved, key: str, function: Callable[..., Any]) -> None:
    """Let a function of ours look at its options, on columns without a row.

    Raises:
        RecipeError: It refuses one.
    """
    if not unbound(function).__module__.startswith("whetstone.algorithms"):
        return  # what others make of no rows is not known
    try:
        function(*(empty_column(name) for name in columns_of(function)))
    except ValueError as error:
        raise resolved.error(key, str(error)) from None


def try_functions(resolved: Resolved, credit: CreditParts, objective: Callable[..., Any]) -> None:
    """Try a custom estimator and a custom objective on a small batch.

    Raises:
        RecipeError: One returns anything other than it must.
    """
    try:
        key = "advantage"
        try_estimator(credit.advantage)
        key = "objective"
        try_loss(objective)
    except CreditError as error:
        raise resolved.error(key, str(error)) from None


def check_use(resolved: Resolved, reads: set[str], columns: Collection[str]) -> None:
    """Refuse what nothing reads. A column may be read by another alone, so of several one that is read is enough.

    Args:
        columns: Names of those the recipe adds.

    Raises:
        RecipeError: A key is without effect.
    """
    recipe = resolved.recipe
    for key, is_set, read in (
        ("teacher", recipe.teacher is not None, {"teacher_logprobs"}),
        ("implicit_prm", recipe.implicit_prm is not None, {"implicit", "model_logprobs"}),
        ("role_tag", recipe.role_tag is not None, {"roles"}),
        ("custom_columns", bool(columns), set(columns)),
    ):
        if is_set and not reads & read:
            raise resolved.error(key, f"has no effect: neither credit nor objective reads {', '.join(sorted(read))}")
    settings = recipe.reinforcement
    moves = settings is not None and settings.reference_sync_steps is not None and not settings.holds_on
    if moves and not reads & {"reference_logprobs", "reference_sums"}:
        said = "has no effect: nothing reads the reference (reinforcement.reference_kl is 0)"
        raise resolved.error("reinforcement.reference_sync_steps", said)


def check_observations(resolved: Resolved, credit: CreditParts) -> None:
    """Refuse credit that reads of each token what the sampler said, where tokens are trained that nobody sampled; and a
    critic, which would be asked for a turn's value in front of what the turn is about.

    Raises:
        RecipeError: It would read numbers that are not there.
    """
    settings = resolved.recipe.reinforcement
    if settings is None or not settings.train_on_observations:
        return
    if resolved.recipe.critic is not None:
        said = (
            "does not go with train_on_observations: it would foretell a turn in front of what tools said, not behind"
        )
        raise resolved.error("critic", said)
    for key, function in credit.every():
        for name in sorted({"entropies", "sampler_logprobs"} & set(columns_of(function))):
            raise resolved.error(key, f"reads {name}, which tokens of tools do not have (train_on_observations)")


def check_objective(resolved: Resolved, objective: Callable[..., Any]) -> None:
    """Refuse what an objective has no use for.

    Raises:
        RecipeError: A key is without effect, or counts something twice.
    """
    recipe, reads = resolved.recipe, columns_of(objective)
    name = recipe.objective.name
    if "advantages" not in reads and recipe.critic is None and recipe.reinforcement is not None:
        # the default stands in every recipe that was written out whole
        for key, is_set in (
            ("advantage", recipe.advantage != DEFAULT_ADVANTAGE),
            ("advantage_transforms", recipe.advantage_transforms),
        ):
            if is_set:
                raise resolved.error(key, f'has no effect: objective "{name}" reads no advantages')
    if recipe.importance_correction is None:
        return
    if sums_level(objective) is not None:
        said = f'objective "{name}" is on sums of log-probs, which have no weights'
        raise resolved.error("importance_correction", said)
    if has_ratio_to_sampler(objective):
        raise resolved.error("importance_correction", f'the ratio of objective "{name}" carries the mismatch already')


def check_critic(resolved: Resolved, heads: Collection[str]) -> None:
    """Refuse critics that nothing reads, and stored episodes for critics that cannot learn from them.

    Args:
        heads: What the critics would foretell.

    Raises:
        RecipeError: A key is without effect.
    """
    recipe = resolved.recipe
    if not heads:
        raise resolved.error("critic", f'has no effect: advantage "{recipe.advantage.name}" does not use a critic')
    stored = recipe.reinforcement.offline_mixture if recipe.reinforcement is not None else None
    if stored is not None and stored.mode == "critic_only" and not set(STATE_VALUES) & set(heads):
        said = f'has no effect: the critics of advantage "{recipe.advantage.name}" say no value of a state'
        raise resolved.error("reinforcement.offline_mixture.mode", said)


def check_group(resolved: Resolved, credit: CreditParts, objective: Callable[..., Any]) -> None:
    """Refuse groups of one where they are compared with the rest of their group, or made of its parts.

    Raises:
        RecipeError: One alone could teach nothing.
    """
    recipe = resolved.recipe
    if recipe.reinforcement is None or recipe.rollout.group_size > 1:
        return
    if recipe.rollout.strategy.name not in _ALONE and ":" not in recipe.rollout.strategy.name:
        said = f'strategy "{recipe.rollout.strategy.name}" makes a group of several episodes; 2 or more'
        raise resolved.error("rollout.group_size", said)
    raw = recipe.advantage.options.get("singleton") == "raw"
    for key, name, function in (
        ("advantage", recipe.advantage.name, credit.advantage),
        ("objective", recipe.objective.name, objective),
    ):
        if key == "advantage" and (raw or "advantages" not in columns_of(objective)):
            continue
        if "group" in columns_of(function):
            others = ", ".join(name for name, each in ADVANTAGES.items() if "group" not in columns_of(each))
            said = f'{key} "{name}" compares the trajectories of a task, so one alone could teach nothing; 2 or more'
            raise resolved.error("rollout.group_size", f"{said}, or an advantage that compares none: {others}")


def check_judging(resolved: Resolved, reward: Reward, environment: Environment, source: Source) -> None:
    """See that a reward asks an environment, and tasks, for what they can say.

    Raises:
        RecipeError: It asks for a verdict of what has none, for tools that are not there, or for what tasks lack.
    """
    terms = reward.terms if isinstance(reward, Composed) else {}
    for name, each in (("reward", reward), *((f"reward.terms.{name}", term.reward) for name, term in terms.items())):
        if unbound(each) is verdict and fulfils(environment, Judges) and not environment.judges:
            said = "the tools say nothing of how an episode went (none has a verdict()); use a reward that reads it"
            raise resolved.error(name, said)
        tools = [spec.name for spec in (environment.toolset.specs if fulfils(environment, HoldsTools) else ())]
        own = each.keywords.get("tools") if isinstance(each, functools.partial) else None
        named = own or (each.tools if fulfils(each, NamesTools) else ())
        for tool in named if tools and isinstance(named, list) else ():
            if tool not in tools:
                raise resolved.error(f"{name}.tools", f'there is no tool "{tool}"{did_you_mean(tool, tools)}')
        if fulfils(each, ChecksTask):
            try:
                each.check(source.task(0))
            except TaskError as error:
                raise resolved.error(name, str(error)) from None
        for key in sorted(private_of(each)):
            task = source.task(0)
            if key not in task.private:
                known = ", ".join(sorted(task.private)) or "nothing"
                raise resolved.error(name, f"reads the private `{key}` of tasks; task {task.id} has {known}")
