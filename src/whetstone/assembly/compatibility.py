"""Checks that the components of a recipe are compatible.

Every column that a component reads must be produced, and every key of the recipe must have an effect.

Note:
    Incompatible components mostly run without an error and train nothing. Each known conflict is rejected with the key
    that resolves it.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any

from whetstone.algorithms import ADVANTAGES, annotated_level, column_names, has_ratio_to_sampler
from whetstone.assembly.column_requirements import find_unmet_columns
from whetstone.capabilities import implements_protocol
from whetstone.environments import Environment
from whetstone.environments.protocol import HasOptionalVerdict, HoldsTools
from whetstone.errors import CreditError, TaskError, did_you_mean
from whetstone.learning.columns import STATE_VALUES, Column, RunCapabilities, create_empty_column
from whetstone.learning.credit_assignment import LEVELS, CreditParts
from whetstone.learning.losses import FORWARD_COLUMNS
from whetstone.learning.sequence_logprobs import SEQUENCE_COLUMNS, get_sequence_level
from whetstone.learning.trial_update import try_estimator, try_loss
from whetstone.plugins import unwrap_partial
from whetstone.recipe import Resolved
from whetstone.recipe.settings import DEFAULT_ADVANTAGE
from whetstone.rewards import Composed, Reward, verdict
from whetstone.rewards.protocol import ChecksTask, NamesTools, required_private_keys
from whetstone.tasks import Source

_ALONE = ("independent", "self_play")
"""Strategies that work with a group of one trajectory."""
_PEER_COLUMNS = {
    "logprobs": "learner_logprobs", "log_probs": "learner_logprobs", "log_prob": "learner_logprobs",
    "old_log_probs": "old_logprobs", "old_log_prob": "old_logprobs", "rollout_log_probs": "sampler_logprobs",
}  # fmt: skip
"""Name of a column in another library → name here, for error messages."""


def check_needs(
    resolved: Resolved,
    credit: CreditParts,
    losses: Mapping[str, Callable[..., Any]],
    run: RunCapabilities,
    columns: Mapping[str, Column],
) -> None:
    """Reject a recipe whose estimators or losses read columns that the run does not produce.

    Args:
        resolved: Recipe.
        credit: Functions that compute advantages.
        losses: Objective and functions of `loss_terms`, by recipe key.
        run: Capabilities of the run.
        columns: Custom columns of the recipe, by name.

    Raises:
        RecipeError: If a column is missing, or has another level (token, turn, trajectory) than its reader expects. The
            message names the reader and a possible provider.
    """
    always_available = {
        "advantage_transforms": {"advantages"},
        "objective": FORWARD_COLUMNS | SEQUENCE_COLUMNS,
        "loss_terms": FORWARD_COLUMNS,
    }
    for key, function in (*credit.list_functions(), *losses.items()):
        section = key.partition(".")[0]
        names = [name for name in column_names(function) if name not in always_available.get(section, ())]
        for column, who in find_unmet_columns(names, run, columns):
            name = getattr(unwrap_partial(function), "__name__", section)
            if inspect.signature(function).parameters[column].default is not inspect.Parameter.empty:
                who = f"it has a default value: make it an option by a * before it, `{name}(…, *, {column}=…)`"
            other = did_you_mean(_PEER_COLUMNS.get(column, column), FORWARD_COLUMNS if key in losses else ())
            raise resolved.error(key, f"{name} reads {column}{other}, which this run does not produce; {who}")
        for added in (columns[name] for name in names if name in columns):
            wanted = annotated_level(function, added.name)
            if key not in losses and wanted != added.level:
                problem = f"reads {added.name} as one number per {wanted}, but it has one per {added.level}"
                raise resolved.error(key, f"{problem}: Per{added.level.capitalize()}")
        dry_run(resolved, key, function)
    level = annotated_level(credit.advantage)
    for k, modulate in enumerate(credit.advantage_transforms):
        wanted = annotated_level(modulate, "advantages")
        if LEVELS.index(wanted) < LEVELS.index(level):
            problem = f"transforms one advantage per {wanted}, but its input has one per {level}"
            raise resolved.error(f"advantage_transforms.{k}", problem)
        level = wanted


def dry_run(resolved: Resolved, key: str, function: Callable[..., Any]) -> None:
    """Call a built-in function with empty columns, so that it validates its options.

    Custom functions are not called, because their behavior without rows is unknown.

    Args:
        resolved: Recipe, for the location in the error.
        key: Recipe key of the function.
        function: Function with bound options.

    Raises:
        RecipeError: If the function rejects an option.
    """
    if not unwrap_partial(function).__module__.startswith("whetstone.algorithms"):
        return  # the behavior of custom functions without rows is unknown
    try:
        function(*(create_empty_column(name) for name in column_names(function)))
    except ValueError as error:
        raise resolved.error(key, str(error)) from None


def try_functions(resolved: Resolved, credit: CreditParts, objective: Callable[..., Any]) -> None:
    """Call the advantage estimator and the objective on a small example batch.

    Raises:
        RecipeError: If a custom function raises, or returns a result of a wrong type or shape.
    """
    try:
        key = "advantage"
        try_estimator(credit.advantage)
        key = "objective"
        try_loss(objective)
    except CreditError as error:
        raise resolved.error(key, str(error)) from None


def check_use(resolved: Resolved, reads: set[str], columns: Collection[str]) -> None:
    """Reject keys of the recipe whose result no estimator and no loss reads.

    A custom column may be read only by another custom column, so the use of one of several is sufficient.

    Args:
        resolved: Recipe.
        reads: Names of all columns that estimators and losses read.
        columns: Names of the custom columns of the recipe.

    Raises:
        RecipeError: If a key has no effect.
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
        problem = "has no effect: nothing reads the reference (reinforcement.reference_kl is 0)"
        raise resolved.error("reinforcement.reference_sync_steps", problem)


def check_observations(resolved: Resolved, credit: CreditParts) -> None:
    """Reject credit functions that read columns which observation tokens lack.

    It applies to `train_on_observations`. Observation tokens were not sampled, so they have no entropy and no sampler
    log-prob. A critic is rejected too: it would predict the value of a turn before the observation instead of after it.

    Raises:
        RecipeError: If a function reads such a column, or the recipe has a critic.
    """
    settings = resolved.recipe.reinforcement
    if settings is None or not settings.train_on_observations:
        return
    if resolved.recipe.critic is not None:
        problem = (
            "is incompatible with train_on_observations: it would predict a turn before the observation, not after it"
        )
        raise resolved.error("critic", problem)
    for key, function in credit.list_functions():
        for name in sorted({"entropies", "sampler_logprobs"} & set(column_names(function))):
            raise resolved.error(key, f"reads {name}, which tokens of tools do not have (train_on_observations)")


def check_objective(resolved: Resolved, objective: Callable[..., Any]) -> None:
    """Reject settings that the objective does not use.

    Raises:
        RecipeError: If a key has no effect, or the importance correction would be applied twice.
    """
    recipe, reads = resolved.recipe, column_names(objective)
    name = recipe.objective.name
    if "advantages" not in reads and recipe.critic is None and recipe.reinforcement is not None:
        # recipes that were saved in full contain the default
        for key, is_set in (
            ("advantage", recipe.advantage != DEFAULT_ADVANTAGE),
            ("advantage_transforms", recipe.advantage_transforms),
        ):
            if is_set:
                raise resolved.error(key, f'has no effect: objective "{name}" reads no advantages')
    if recipe.importance_correction is None:
        return
    if get_sequence_level(objective) is not None:
        problem = f'objective "{name}" is on sums of log-probs, which have no weights'
        raise resolved.error("importance_correction", problem)
    if has_ratio_to_sampler(objective):
        raise resolved.error("importance_correction", f'the ratio of objective "{name}" already includes the mismatch')


def check_critic(resolved: Resolved, heads: Collection[str]) -> None:
    """Reject critics that nothing reads or that offline episodes cannot train.

    Args:
        resolved: Recipe.
        heads: Names of the critic's heads, which follow from the columns of the advantage estimator.

    Raises:
        RecipeError: If a key has no effect.
    """
    recipe = resolved.recipe
    if not heads:
        raise resolved.error("critic", f'has no effect: advantage "{recipe.advantage.name}" does not use a critic')
    stored = recipe.reinforcement.offline_mixture if recipe.reinforcement is not None else None
    if stored is not None and stored.mode == "critic_only" and not set(STATE_VALUES) & set(heads):
        problem = f'has no effect: the critics of advantage "{recipe.advantage.name}" predict no state values'
        raise resolved.error("reinforcement.offline_mixture.mode", problem)


def check_group(resolved: Resolved, credit: CreditParts, objective: Callable[..., Any]) -> None:
    """Reject groups of one trajectory if the method compares the trajectories of a group.

    Raises:
        RecipeError: If a group of one trajectory could train nothing.
    """
    recipe = resolved.recipe
    if recipe.reinforcement is None or recipe.rollout.group_size > 1:
        return
    if recipe.rollout.strategy.name not in _ALONE and ":" not in recipe.rollout.strategy.name:
        problem = f'strategy "{recipe.rollout.strategy.name}" samples several episodes per group; set at least 2'
        raise resolved.error("rollout.group_size", problem)
    raw = recipe.advantage.options.get("singleton") == "raw"
    for key, name, function in (
        ("advantage", recipe.advantage.name, credit.advantage),
        ("objective", recipe.objective.name, objective),
    ):
        if key == "advantage" and (raw or "advantages" not in column_names(objective)):
            continue
        if "group" in column_names(function):
            others = ", ".join(name for name, each in ADVANTAGES.items() if "group" not in column_names(each))
            problem = f'{key} "{name}" compares the trajectories of a task, so a group of one has no effect'
            remedy = f"set at least 2, or use an advantage without comparison: {others}"
            raise resolved.error("rollout.group_size", f"{problem}; {remedy}")


def check_judging(resolved: Resolved, reward: Reward, environment: Environment, source: Source) -> None:
    """Check that the environment and the tasks provide the values that the reward reads.

    Raises:
        RecipeError: If the environment has no verdict, or a tool or a private value of the tasks is missing.
    """
    terms = reward.terms if isinstance(reward, Composed) else {}
    for name, each in (("reward", reward), *((f"reward.terms.{name}", term.reward) for name, term in terms.items())):
        if (
            unwrap_partial(each) is verdict
            and implements_protocol(environment, HasOptionalVerdict)
            and not environment.judges
        ):
            problem = (
                "the tools report no outcome of an episode (none has verdict()); use a reward that does not need it"
            )
            raise resolved.error(name, problem)
        tools = [
            spec.name for spec in (environment.toolset.specs if implements_protocol(environment, HoldsTools) else ())
        ]
        own = each.keywords.get("tools") if isinstance(each, functools.partial) else None
        named = own or (each.tools if implements_protocol(each, NamesTools) else ())
        for tool in named if tools and isinstance(named, list) else ():
            if tool not in tools:
                raise resolved.error(f"{name}.tools", f'there is no tool "{tool}"{did_you_mean(tool, tools)}')
        if implements_protocol(each, ChecksTask):
            try:
                each.check(source.task(0))
            except TaskError as error:
                raise resolved.error(name, str(error)) from None
        for key in sorted(required_private_keys(each)):
            task = source.task(0)
            if key not in task.private:
                known = ", ".join(sorted(task.private)) or "nothing"
                raise resolved.error(name, f"reads the private `{key}` of tasks; task {task.id} has {known}")
