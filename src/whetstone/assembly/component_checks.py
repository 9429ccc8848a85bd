"""Check of all components of a run before anything is sampled."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from whetstone.algorithms import column_names
from whetstone.assembly.compatibility import (
    check_group,
    check_judging,
    check_needs,
    check_objective,
    check_observations,
    check_use,
    dry_run,
    try_functions,
)
from whetstone.assembly.instantiate import lookup_component
from whetstone.assembly.learner_processes import check_learner_processes
from whetstone.assembly.member_recipes import check_members
from whetstone.assembly.rollout_components import check_method
from whetstone.assembly.seats import member_seats
from whetstone.environments.protocol import find_known_tools
from whetstone.errors import RecipeError
from whetstone.inference import ENGINES
from whetstone.learning.columns import RunCapabilities, collect_columns
from whetstone.learning.learner_factory import LEARNERS
from whetstone.learning.optimizer import check_optimizer
from whetstone.rewards import provided_columns
from whetstone.rollout.optional_protocols import provided_data
from whetstone.tasks import Expert

if TYPE_CHECKING:
    from whetstone.assembly.assembly import RunComponents


def check_components(assembly: RunComponents) -> None:
    """Build and check all components, in the order of the data.

    Raises:
        WhetstoneError: A name, option, file or folder is wrong; the message has the key.
    """
    resolved, recipe, source = assembly.resolved, assembly.resolved.recipe, assembly.source
    imitation = recipe.reinforcement.imitation if recipe.reinforcement is not None else None
    warm_up = recipe.supervised if recipe.supervised is not None and recipe.supervised.data is None else None
    for key, asks in (("supervised", warm_up), ("reinforcement.imitation", imitation)):
        if asks is not None and not isinstance(assembly.demonstration_source, Expert):
            raise resolved.error(
                key, f'the source "{recipe.tasks.source}" has no expert to learn from; set {key}: null'
            )
    for key, part, built_in in (("engine", recipe.engine, ENGINES), ("learner", recipe.learner, LEARNERS)):
        lookup_component(resolved, key, key, part.name, built_in)
    for key, stage in recipe.own_stages.items():
        try:
            check_optimizer(stage)
        except RecipeError as error:
            raise resolved.error(f"{key}.optimizer", str(error)) from None
    environment, (policy, _), reward = assembly.environment, assembly.loaded, assembly.reward
    built = environment()
    check_judging(resolved, reward, built, source)
    undescribed = [spec.name for spec in find_known_tools(built) if not spec.description]
    if undescribed:
        names = ", ".join(undescribed)
        assembly.say(f"tools without a docstring: {names}; add one, it is the description that the model reads")
    assembly.build("chat")
    check_learner_processes(resolved, policy, say=assembly.say)
    check_members(resolved, member_seats(assembly), assembly.members)
    check_method(resolved, assembly.strategy, assembly.method, source, environment)
    credit, objective = assembly.credit, assembly.objective
    if assembly.correction is not None:
        dry_run(resolved, "importance_correction", assembly.correction)
    try_functions(resolved, credit, objective)
    losses = {"objective": objective, **{f"loss_terms.{k}": t.function for k, t in enumerate(assembly.loss_terms)}}
    added = collect_columns(assembly.columns)
    if recipe.reinforcement is not None:
        task = functools.partial(source.task, 0)
        run = RunCapabilities(recipe, task, provided_columns(reward), provided_data(assembly.strategy))
        check_needs(resolved, credit, losses, run, added)
    check_use(
        resolved,
        {name for _, each in (*credit.list_functions(), *losses.items()) for name in column_names(each)},
        added,
    )
    check_objective(resolved, objective)
    check_observations(resolved, credit)
    check_group(resolved, credit, objective)
    assembly.build("policy", "search_strategy", "frozen", "teacher_reads")
    for member in assembly.members.values():
        assert member.policy is not None  # a missing folder is reported before the run starts
