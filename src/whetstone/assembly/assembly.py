"""Components of a run, each built when it is first requested.

`assemble` reads a recipe and builds nothing. `RunComponents.check` builds and checks all components in the order of the
data, so that a mistake in a recipe is reported before anything is sampled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import torch

from whetstone.algorithms import LossTerm, column_names
from whetstone.assembly.build_policy import build_chat, build_policy
from whetstone.assembly.column_requirements import added_columns
from whetstone.assembly.compatibility import check_critic
from whetstone.assembly.component_checks import check_components
from whetstone.assembly.credit_functions import build_correction, build_credit, build_objective
from whetstone.assembly.custom_loss_terms import added_loss_terms
from whetstone.assembly.environment import build_environment, list_tools
from whetstone.assembly.frozen_models import frozen_models
from whetstone.assembly.instantiate import build_component
from whetstone.assembly.members import reward_member
from whetstone.assembly.offline_data import StoredReader
from whetstone.assembly.rollout_components import build_evaluation_strategy, build_method, build_strategy
from whetstone.assembly.seats import build_sampling, frozen_actors, member_actors
from whetstone.assembly.task_components import build_reward, build_source
from whetstone.assembly.teacher import teacher_reads
from whetstone.capabilities import implements_protocol
from whetstone.chat import Chat, ToolCallFormat, ToolSpec
from whetstone.environments import Environment
from whetstone.errors import PolicyError, RecipeError
from whetstone.inference import ENGINES, Engine, Member, RestartingEngine, check_capabilities, uses_merged_weights
from whetstone.learning.columns import critic_heads
from whetstone.learning.credit_assignment import CreditParts
from whetstone.learning.loss_expansion import expand_loss_terms
from whetstone.learning.spec import ColumnSources, LearningSpec
from whetstone.policies import (
    Policy,
    build_critic,
    clone_trainable,
    freeze_parameters,
)
from whetstone.recipe import ReinforcementSettings, Resolved
from whetstone.record.starting import resolve_start
from whetstone.rewards import Reward, provided_columns
from whetstone.rollout import (
    Actor,
    Collector,
    EndpointActor,
    EpisodeLimits,
    EpisodeRecord,
    ExpertActor,
    Method,
    PolicyActor,
    Strategy,
)  # fmt: skip
from whetstone.rollout.cluster import Cluster
from whetstone.rollout.deadlines import group_deadline, turn_deadline
from whetstone.rollout.optional_protocols import ReadsEntropies
from whetstone.rollout.protocol import Stateful
from whetstone.tasks import Expert, Source
from whetstone.tasks.protocol import ReportsSkipped
from whetstone.tool_calls import ToolWatch
from whetstone.tools import CallPolicy
from whetstone.tools.model_tools import FrozenModel
from whetstone.trajectory import Task, Trajectory

_ANY_LENGTH = 1 << 40
"""Context length if the context is stored by another component."""


class RunComponents:
    """Components of a run, each built when it is first requested and then kept.

    Args:
        resolved: Recipe of the run.
        policy: Policy that is used instead of the one of the recipe, such as one from a checkpoint.
        memory: State of the components of the method and of members, from a checkpoint.
        say: Callback for lines about choices and skipped data.
        calls: Tools that are called; None: those that a run calls.
    """

    def __init__(
        self,
        resolved: Resolved,
        policy: Policy | None = None,
        memory: Mapping[str, Any] | None = None,
        *,
        say: Callable[[str], None] = lambda line: None,
        calls: CallPolicy | None = None,
    ) -> None:
        self.resolved, self.say = resolved, say
        self.member = next(iter(resolved.recipe.policies), "")
        """Name of the member that `policy` is; empty if the recipe has only `policy`."""
        self.members: dict[str, Member] = {}
        """Other members of `policies`: learned rewards, and from the start of reinforcement those in seats."""
        self._policy, self.memory, self._calls = policy, memory or {}, calls
        self.skipped_rows: dict[str, int] = {}
        """Number of invalid rows that were skipped (`on_bad_row: skip`), by the recipe key of their file."""
        self.checked_data: dict[str, tuple[Any, Any]] = {}
        """(settings, data) of stages whose data is checked before the run starts, by the recipe key; read once."""
        self.tool_watch = ToolWatch(say)
        """Reports tools that fail in every call; shared by all collectors."""
        self.cluster: Cluster | None = None
        """Location of engine and episodes, if they are not in this process."""

    def with_components(self, **components: Any) -> RunComponents:
        """Return an assembly with other components; all components that are built are shared."""
        changed = copy(self)
        changed.__dict__.update(components)
        return changed

    @cached_property
    def source(self) -> Source:
        """Source of tasks."""
        source = build_source(self.resolved, "tasks", self.resolved.recipe.tasks.options)
        self._report_skipped("tasks", source)
        return source

    @cached_property
    def demonstration_source(self) -> Source:
        """Source of the tasks of demonstrations; `source`, unless the warm-up has separate options."""
        recipe = self.resolved.recipe
        if recipe.supervised is None or not recipe.supervised.tasks:
            return self.source
        options = {**recipe.tasks.options, **recipe.supervised.tasks}
        source = build_source(self.resolved, "supervised.tasks", options)
        self._report_skipped("supervised.tasks", source)
        return source

    @cached_property
    def models(self) -> Mapping[str, FrozenModel]:
        """Frozen models of `models`, by name."""
        return frozen_models(self.resolved)

    @cached_property
    def environment(self) -> Callable[[], Environment]:
        """Function that creates the environment of an episode."""
        return build_environment(self.resolved, self._calls, models=self.models)

    def _environment_with(self, changes: Mapping[str, Any]) -> Callable[[], Environment]:
        return build_environment(self.resolved.with_changes(changes), self._calls, models=self.models)

    @cached_property
    def offered_tools(self) -> tuple[ToolSpec, ...]:
        """Tools that the environment offers. An MCP server is started to list its tools."""
        return list_tools(self.environment)

    @cached_property
    def loaded(self) -> tuple[Policy, ToolCallFormat]:
        """Policy without critic, and its tool-call format."""
        materials = lambda: (self.source, self.environment)  # noqa: E731
        return build_policy(self.resolved, materials, self._policy, say=self.say)

    @cached_property
    def chat(self) -> Chat:
        """Chat template of the policy, and its tool-call format."""
        return build_chat(self.resolved, *self.loaded)

    @cached_property
    def policy(self) -> Policy:
        """Policy in training, with its critic."""
        resolved, recipe, policy = self.resolved, self.resolved.recipe, self.loaded[0]
        if recipe.critic is not None:
            heads = critic_heads(column_names(self.credit.advantage), ensemble=recipe.critic.ensemble_size)
            check_critic(resolved, heads)
            critic = build_critic(
                policy.model,
                heads,
                detached=recipe.critic.detach_backbone,
                probabilities=recipe.critic.loss == "success",
                learning_rate=recipe.critic.learning_rate,
            )
            if policy.critic is not None and policy.critic.heads == critic.heads:
                critic.load_state_dict(policy.critic.state_dict())
            policy = replace(policy, critic=critic)
        try:
            freeze_parameters(policy, recipe.policy.freeze)
        except PolicyError as error:
            raise resolved.error("policy.freeze", str(error)) from None
        return policy

    @cached_property
    def _vocabulary(self) -> int:
        """Number of tokens of the policy."""
        return int(self.loaded[0].model.get_input_embeddings().num_embeddings)  # type: ignore[operator]

    @cached_property
    def reward(self) -> Reward:
        """Reward of an episode."""
        return build_reward(self.resolved, member=partial(reward_member, self))

    @cached_property
    def strategy(self) -> Strategy:
        """Strategy that samples the trajectories of a task."""
        return build_strategy(self.resolved, self.source, self._vocabulary)

    @cached_property
    def search_strategy(self) -> Strategy | None:
        """Evaluation strategy that combines several attempts into an answer; None: each attempt counts."""
        return build_evaluation_strategy(self.resolved)

    @cached_property
    def stored_reader(self) -> StoredReader:
        """Reader of the stored episodes that `data` names."""
        length = self.loaded[0].context_length
        return StoredReader(self.resolved, self.chat, self.environment, length, self.skipped_rows, self.say)

    @cached_property
    def method(self) -> Method:
        """Components around the strategy, with their state."""
        method = build_method(self.resolved, self.source, self._vocabulary, self.stored_reader, self._environment_with)
        if isinstance(self.reward, Stateful):
            method = replace(method, reward=self.reward)
        method.load_state(self.memory)
        return method

    @cached_property
    def credit(self) -> CreditParts:
        """Functions that compute advantages."""
        return build_credit(self.resolved)

    @cached_property
    def objective(self) -> Callable[..., Any]:
        """Columns of its parameters' names, each [T] → TokenLoss; or sums [S] → SumLoss."""
        return build_objective(self.resolved)

    @cached_property
    def correction(self) -> Callable[..., Any] | None:
        """Columns of its parameters' names, each [T] → [T] weights; None: no correction."""
        return build_correction(self.resolved)

    @cached_property
    def loss_terms(self) -> tuple[LossTerm, ...]:
        """Terms that are added to the objective."""
        return added_loss_terms(self.resolved, self.objective)

    @cached_property
    def columns(self) -> tuple[Callable[..., Any], ...]:
        """Columns that the recipe adds to the built-in ones."""
        return added_columns(self.resolved, provided_columns(self.reward))

    @cached_property
    def frozen(self) -> Mapping[str, Actor]:
        """Actors that play a seat instead of the policy, by role."""
        return frozen_actors(self)

    @cached_property
    def teacher_reads(self) -> Callable[[Trajectory, Task], Trajectory] | None:
        """Function that returns an episode with the teacher's context: the same actions in other contexts. None: the
        policy's context."""
        return teacher_reads(self.resolved, self.source, self.environment, self.chat)

    def restart(self, **components: Any) -> RunComponents:
        """Return a copy with a newly built policy, with the weights of the start of the run.

        Args:
            components: Components that replace those of this object.
        """
        other = self.with_components(**{"_policy": None, **components})
        for name in ("loaded", "policy", "chat"):
            other.__dict__.pop(name, None)
        return other

    @property
    def trained(self) -> dict[str, Member]:
        """Members that are sampled and trained in addition to `policy`."""
        return {name: each for name, each in self.members.items() if each.is_trained and each.is_sampled}

    def build(self, *names: str) -> None:
        """Build components, in this order.

        Raises:
            WhetstoneError: One cannot be built.
        """
        for name in names:
            getattr(self, name)

    def check(self) -> RunComponents:
        """Build and check all components.

        Returns:
            This assembly.

        Raises:
            WhetstoneError: A name, option, file or folder is wrong; the message has the key.
        """
        check_components(self)
        return self

    def _report_skipped(self, key: str, tasks: Source) -> None:
        if implements_protocol(tasks, ReportsSkipped) and tasks.skipped:
            self.skipped_rows[key] = tasks.skipped
            self.say(f"{key}: {tasks.skipped} invalid rows are skipped (tasks.on_bad_row: skip)")

    def engine(self, *, heard: Callable[[str], None] = lambda line: None) -> Engine:
        """Build an engine that samples from the policy in training.

        A local engine shares the trained weights, unless it continues to sample while they change or computes in half
        precision. Other engines receive the weights.

        Args:
            heard: Called with a line at each restart.
        """
        if self.cluster is not None:
            return self.cluster.engine
        recipe = self.resolved.recipe
        ahead = recipe.reinforcement is not None and recipe.reinforcement.admit_ahead > 0
        policy = replace(self.policy, model=self.sampled_model(keeps_weights=ahead))
        arguments = {"policy": policy, "max_sequences": recipe.rollout.max_in_flight, "heard": heard}

        def make(version: int) -> Engine:  # another engine for the same model samples from the weights last loaded
            engine: Engine = build_component(
                self.resolved,
                "engine",
                "engine",
                recipe.engine,
                ENGINES,
                {**arguments, "version": version},
                protocol=Engine,
            )
            return engine

        first = make(0)
        self._check_capabilities(first)
        # an engine with a server keeps the weights last given, for a restarted server
        return first if isinstance(first, RestartingEngine) else RestartingEngine(make, heard=heard, first=first)

    def sampled_model(self, *, keeps_weights: bool = False) -> torch.nn.Module:
        """Return the model that is sampled: with the trained weights, or a copy of them in the precision of sampling.

        Args:
            keeps_weights: Whether it keeps its weights while they are trained.
        """
        model, dtype = self.policy.model, self.policy.dtype
        if uses_merged_weights(self.policy):  # the engine makes a copy
            return clone_trainable(model) if keeps_weights else model
        if keeps_weights or any(parameter.dtype != dtype for parameter in model.parameters()):
            return clone_trainable(model, dtype=dtype)
        return model

    def _check_capabilities(self, engine: Engine) -> None:
        """Reject an engine that lacks a capability that the recipe requires.

        Raises:
            RecipeError: If it lacks one; the message names an engine that has it.
        """
        try:
            check_capabilities(
                engine.capabilities, self.required_capabilities(), engine=self.resolved.recipe.engine.name
            )
        except RecipeError as error:
            raise self.resolved.error("engine", str(error)) from None

    def required_capabilities(self) -> dict[str, str]:
        """Return the engine capabilities that the recipe requires, each with the recipe key that requires it."""
        recipe = self.resolved.recipe
        needed: dict[str, str] = {}
        if recipe.reinforcement is not None and recipe.reinforcement.deterministic:
            needed["seeds"] = "reinforcement.deterministic: true"
        if implements_protocol(self.strategy, ReadsEntropies) and self.strategy.reads_entropies:
            needed["entropies"] = f"rollout.strategy: {recipe.rollout.strategy.name}"
        if self.reads("entropies", "turn_entropies"):
            needed["entropies"] = "the column of entropies that credit or objective reads"
        return needed

    def learning_spec(self, settings: ReinforcementSettings) -> LearningSpec:
        """Return how a stage trains on groups."""
        recipe = self.resolved.recipe
        return LearningSpec(
            settings=settings,
            credit=self.credit,
            terms=expand_loss_terms(
                settings, self.objective, correction=self.correction, critic=recipe.critic, added=self.loss_terms
            ),
            aggregation=recipe.aggregation,
            critic=recipe.critic,
            temperature=recipe.rollout.temperature,
            seed=recipe.seed,
            column_sources=ColumnSources(recipe.role_tag, self.chat, self.teacher_reads, self.columns),
        )

    def reads(self, *names: str) -> bool:
        """Return True if credit, objective or a loss term reads any of these columns."""
        functions = [
            *(each for _, each in self.credit.list_functions()),
            self.objective,
            *(t.function for t in self.loss_terms),
        ]
        return any(name in column_names(function) for function in functions for name in names)

    def collector(
        self, actor: Actor, *, record: EpisodeRecord | None = None, method: Method | None = None
    ) -> Collector:
        """Return the collector of episodes in which `actor` acts.

        Args:
            actor: Actor of the policy's seat.
            record: Record of the episodes.
            method: Components around the strategy. None: those of an evaluation if a policy acts, and none if an expert
                does.
        """
        if method is None:
            method = Method() if isinstance(actor, ExpertActor) else self.method.at_evaluation()
        recipe = self.resolved.recipe
        limits = EpisodeLimits(
            max_turns=recipe.environment.max_turns,
            context_length=_ANY_LENGTH if isinstance(actor, EndpointActor) else self.policy.context_length,
            timeout_seconds=recipe.environment.timeout_seconds,
        )
        collector = Collector(
            environment=self.environment,
            actor=actor,
            chat=self.chat,
            reward=self.reward,
            limits=limits,
            max_in_flight=recipe.rollout.max_in_flight,
            record=record,
            turn_deadline=turn_deadline(recipe.environment.turn_timeout_seconds),
            group_deadline=group_deadline(
                recipe.rollout.group_timeout_seconds if isinstance(actor, PolicyActor) else "none"
            ),
            reward_timeout_seconds=recipe.rollout.reward_timeout_seconds,
            busy_seconds=(lambda: actor.engine.statistics.busy_seconds) if isinstance(actor, PolicyActor) else None,
            method=method,
            expert=self.expert_actor() if isinstance(self.demonstration_source, Expert) else None,
            others={**self.frozen, **member_actors(self)},
            tool_watch=self.tool_watch,
        )
        return collector if self.cluster is None else self.cluster.distribute_collector(collector)

    def policy_actor(self, engine: Engine, *, temperature: float, member: str | None = None) -> PolicyActor:
        """Return an actor that samples with the settings of this recipe.

        Args:
            member: Name of the member whose engine it is; None: that of `policy`.
        """
        sampling = build_sampling(self.resolved.recipe.rollout, self.chat, temperature)
        return PolicyActor(engine, sampling, self.chat.stop_ids, self.member if member is None else member)

    def expert_actor(self) -> ExpertActor:
        """Return the source's expert as an actor.

        Raises:
            RecipeError: If the source has none.
        """
        if not isinstance(self.demonstration_source, Expert):
            raise RecipeError(f'the source "{self.resolved.recipe.tasks.source}" has no expert')
        return ExpertActor(self.demonstration_source, self.chat)


def assemble(
    resolved: Resolved,
    policy: Policy | None = None,
    memory: Mapping[str, Any] | None = None,
    *,
    say: Callable[[str], None] = lambda line: None,
    calls: CallPolicy | None = None,
) -> RunComponents:
    """Return the components of a recipe. They are built when they are requested, and checked by `RunComponents.check`.

    Args:
        policy: Same as for `RunComponents`.
        memory: Same as for `RunComponents`.
        say: Same as for `RunComponents`.
        calls: Same as for `RunComponents`.

    Raises:
        RecipeError: A variable has no value, or `start_from` names no checkpoint.
    """
    resolved.check_variables()
    return RunComponents(resolve_start(resolved), policy, memory, say=say, calls=calls)


def scoring_components(
    resolved: Resolved, calls: CallPolicy | None = None
) -> tuple[Source, Callable[[], Environment], Reward]:
    """Return (task source, function that creates an environment, reward) of a recipe: all that scoring needs without a
    model.

    Args:
        resolved: Recipe.
        calls: Which tools are called; None: those that a run calls.

    Raises:
        WhetstoneError: See `assemble`.
    """
    resolved.check_variables()
    source = build_source(resolved, "tasks", resolved.recipe.tasks.options)
    return source, build_environment(resolved, calls), RunComponents(resolved).reward
