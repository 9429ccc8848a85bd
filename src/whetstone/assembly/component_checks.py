"""Check of all components of a run before anything is sampled."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from whetstone.algorithms import columns_of
from whetstone.assembly.compatibility import (
    check_group,
    check_judging,
    check_needs,
    check_objective,
    check_observations,
    check_use,
    try_functions,
    try_on_nothing,
)
from whetstone.assembly.instantiate import found
from whetstone.assembly.learner_processes import check_learner_processes
from whetstone.assembly.member_recipes import check_members
from whetstone.assembly.methods import check_method
from whetstone.assembly.seats import member_seats
from whetstone.environments.protocol import tools_shown
from whetstone.errors import RecipeError
from whetstone.inference import ENGINES
from whetstone.learning.columns import RunCapabilities, by_name
from whetstone.learning.factory import LEARNERS
from whetstone.learning.optimizer import check_optimizer
from whetstone.rewards import provided_by
from whetstone.rollout.optional import provided
from whetstone.tasks import Expert

if TYPE_CHECKING:
    from whetstone.assembly.assembly import Assembly


def check_components(assembly: Assembly) -> None:
    """Build and check all components, in the order of the data.

    Raises:
        WhetstoneError: A name, option, file or folder is wrong; the message has the key.
    """
    resolved, recipe, source = assembly.resolved, assembly.resolved.recipe, assembly.source
    imitation = recipe.reinforcement.imitation if recipe.reinforcement is not None else None
    warm_up = recipe.supervised if recipe.supervised is not None and recipe.supervised.data is None else None
    for key, asks in (("supervised", warm_up), ("reinforcement.imitation", imitation)):
        if asks is not None and not isinstance(assembly.demonstrated, Expert):
            raise resolved.error(
                key, f'the source "{recipe.tasks.source}" has no expert to learn from; set {key}: null'
            )
    for key, part, built_in in (("engine", recipe.engine, ENGINES), ("learner", recipe.learner, LEARNERS)):
        found(resolved, key, key, part.name, built_in)
    for key, stage in recipe.own_stages.items():
        try:
            check_optimizer(stage)
        except RecipeError as error:
            raise resolved.error(f"{key}.optimizer", str(error)) from None
    environment, (policy, _), reward = assembly.environment, assembly.loaded, assembly.reward
    built = environment()
    check_judging(resolved, reward, built, source)
    undescribed = [spec.name for spec in tools_shown(built) if not spec.description]
    if undescribed:
        names = ", ".join(undescribed)
        assembly.say(f"tools without a docstring: {names}; add one, it is the description that the model reads")
    assembly.build("chat")
    check_learner_processes(resolved, policy, say=assembly.say)
    check_members(resolved, member_seats(assembly))
    check_method(resolved, assembly.strategy, assembly.method, source, environment)
    credit, objective = assembly.credit, assembly.objective
    if assembly.correction is not None:
        try_on_nothing(resolved, "importance_correction", assembly.correction)
    try_functions(resolved, credit, objective)
    losses = {"objective": objective, **{f"loss_terms.{k}": t.function for k, t in enumerate(assembly.loss_terms)}}
    added = by_name(assembly.columns)
    if recipe.reinforcement is not None:
        task = functools.partial(source.task, 0)
        run = RunCapabilities(recipe, task, provided_by(reward), provided(assembly.strategy))
        check_needs(resolved, credit, losses, run, added)
    check_use(resolved, {name for _, each in (*credit.every(), *losses.items()) for name in columns_of(each)}, added)
    check_objective(resolved, objective)
    check_observations(resolved, credit)
    check_group(resolved, credit, objective)
    assembly.build("policy", "searching", "frozen", "teacher_reads")
