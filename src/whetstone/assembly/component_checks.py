"""Checks of a run's components and number of learner processes, before sampling.

Note:
    Two processes on the same GPU cannot communicate through NCCL, so each learner process needs its own GPU. On a CPU,
    more processes than cores make training slower.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

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
from whetstone.assembly.member_recipes import check_members
from whetstone.assembly.rollout_components import check_method
from whetstone.assembly.seats import member_seats
from whetstone.environments.protocol import find_known_tools
from whetstone.errors import PolicyError, RecipeError
from whetstone.inference import ENGINES
from whetstone.learning.columns import RunCapabilities, collect_columns
from whetstone.learning.learner_factory import LEARNERS
from whetstone.learning.optimizer import check_optimizer
from whetstone.policies import Policy, tensor_plan
from whetstone.recipe import Resolved
from whetstone.rewards import provided_columns
from whetstone.rollout.optional_protocols import provided_data
from whetstone.tasks import Expert

if TYPE_CHECKING:
    from whetstone.assembly.assembly import RunComponents


def check_components(assembly: RunComponents) -> None:
    """Build and check all components of a run in the order of the data, from tasks to losses.

    `RunComponents.check` calls this before anything is sampled.

    Raises:
        WhetstoneError: If a name, option, file or folder is wrong; the message names the recipe key.
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
    assembly.build_components("chat")
    check_learner_processes(resolved, policy, log=assembly.say)
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
    assembly.build_components("policy", "search_strategy", "frozen", "teacher_reads")
    for member in assembly.members.values():
        assert member.policy is not None  # a missing folder is reported before the run starts


_KEY, _TOGETHER = "scale.learner_processes", "scale.learner_tensor_parallel"


def check_learner_processes(resolved: Resolved, policy: Policy, *, log: Callable[[str], None]) -> None:
    """Check that the learner can run in `scale.learner_processes` processes.

    Args:
        resolved: Recipe.
        policy: Policy in training.
        log: Callback that receives a line if there are more processes than CPU cores.

    Raises:
        RecipeError: If the learner, the optimizer or the devices do not support this number; the message states a
            remedy.
    """
    recipe, count, device = resolved.recipe, resolved.recipe.scale.learner_processes, policy.device
    if count == 1:
        return
    if recipe.learner.name != "local":
        raise resolved.error(_KEY, f'has no effect: learner "{recipe.learner.name}" does not support several processes')
    for stage, settings in recipe.own_stages.items():
        if settings.optimizer == "adamw_8bit":
            problem = f"{stage}.optimizer: adamw_8bit cannot be divided among {count} processes"
            raise resolved.error(_KEY, f"{problem}; use adamw, whose state is divided among them")
    together = recipe.scale.learner_tensor_parallel
    if together > 1:
        try:
            tensor_plan(policy.model, together)
        except PolicyError as error:
            raise resolved.error(_TOGETHER, str(error)) from None
    if device.type == "cpu":
        cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
        if count > cores:
            log(f"{_KEY}: {count} processes share {cores} cores; use at most {cores}, which are as fast")
        return
    num_devices = torch.get_device_module(device).device_count()
    if device.type != "cuda":
        raise resolved.error(_KEY, f"several processes require CPUs or CUDA devices, got {device.type}")
    if count > num_devices:
        raise resolved.error(
            _KEY, f"{count} processes need {count} GPUs, but this machine has {num_devices}; set at most {num_devices}"
        )
