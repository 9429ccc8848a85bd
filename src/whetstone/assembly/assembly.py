"""Components of a run, each built from the recipe when it is first requested.

`assemble` reads a recipe and builds nothing. `RunComponents.check` builds and checks all components in the order of the
data, so that a mistake in a recipe is reported before anything is sampled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import torch

from whetstone.algorithms import (
    ADVANTAGE_TRANSFORMS,
    ADVANTAGES,
    CORRECTIONS,
    CREDIT_FILTERS,
    OBJECTIVES,
    SHAPING,
    LossTerm,
    column_names,
)
from whetstone.assembly.build_policy import build_chat, build_policy
from whetstone.assembly.column_requirements import build_custom_columns
from whetstone.assembly.compatibility import check_critic
from whetstone.assembly.component_checks import check_components
from whetstone.assembly.custom_loss_terms import build_loss_terms
from whetstone.assembly.environment import build_environment, list_tools
from whetstone.assembly.frozen_models import frozen_models
from whetstone.assembly.instantiate import build_component, build_function, lookup_component
from whetstone.assembly.members import reward_member
from whetstone.assembly.offline_data import StoredReader
from whetstone.assembly.rollout_components import (
    build_controller,
    build_evaluation_strategy,
    build_method,
    build_strategy,
    count_engine_sequences,
)
from whetstone.assembly.seats import build_frozen_actors, build_member_actors, build_sampling
from whetstone.assembly.task_components import build_reward, build_source
from whetstone.capabilities import implements_protocol
from whetstone.chat import Chat, ToolCallFormat, ToolSpec
from whetstone.environments import Environment
from whetstone.errors import PolicyError, RecipeError
from whetstone.inference import ENGINES, Engine, Member, RestartingEngine, check_capabilities, uses_merged_weights
from whetstone.inference.protocol import ReportsLoad
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
from whetstone.recipe import Part, ReinforcementSettings, Resolved
from whetstone.record.starting import resolve_start
from whetstone.rewards import Reward, provided_columns
from whetstone.rollout import (
    Actor,
    Collector,
    EndpointActor,
    EpisodeLimits,
    EpisodeRecord,
    ExpertActor,
    MethodComponents,
    PolicyActor,
    Strategy,
)  # fmt: skip
from whetstone.rollout.cluster import Cluster
from whetstone.rollout.deadlines import group_deadline, turn_deadline
from whetstone.rollout.optional_protocols import ReadsEntropies
from whetstone.rollout.protocol import Stateful
from whetstone.rollout.relabel_context import WithHint
from whetstone.tasks import Expert, Source
from whetstone.tasks.protocol import ReportsSkipped
from whetstone.tool_calls import ToolWatch
from whetstone.tools import CallPolicy
from whetstone.tools.model_tools import FrozenModel
from whetstone.trajectory import Task, Trajectory

_ANY_LENGTH = 1 << 40
"""Context length if the context is stored by another component."""


class RunComponents:
    """Components of a run: tasks, environment, policy, reward and rollout method.

    `assemble` creates the object. Each component is an attribute that is built from the recipe when it is first read,
    and kept afterwards. Training, evaluation, serving and the command line get all components from here.

    Args:
        resolved: Recipe of the run.
        policy: Policy to use instead of the policy of the recipe, for example one loaded from a checkpoint.
        memory: State of the method's components and of the members, from a checkpoint; None: initial state.
        say: Callback that receives log lines about choices and skipped data.
        calls: Policy that decides which tools are really called; None: the call policy of a run.
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
        self.leaking_rows: dict[str, frozenset[int]] = {}
        """Numbers of rows that are left out because they contain evaluation tasks, by the recipe key of their file."""
        self.checked_data: dict[str, tuple[Any, Any]] = {}
        """(settings, data) of stages whose data is checked before the run starts, by the recipe key; read once."""
        self.tool_watch = ToolWatch(say)
        """Reports tools that fail in every call; shared by all collectors."""
        self.cluster: Cluster | None = None
        """Location of engine and episodes, if they are not in this process."""

    def with_components(self, **components: Any) -> RunComponents:
        """Return a copy of this object in which the named components are replaced.

        Components that are already built are shared with the copy.

        Args:
            components: New value by attribute name, such as `method` or `cluster`.
        """
        changed = copy(self)
        changed.__dict__.update(components)
        return changed

    @cached_property
    def source(self) -> Source:
        """Task source of the recipe (`tasks`)."""
        source = build_source(self.resolved, "tasks", self.resolved.recipe.tasks.options, log=self.say)
        self._report_skipped("tasks", source)
        return source

    @cached_property
    def demonstration_source(self) -> Source:
        """Task source of the expert's demonstrations.

        It is `source`, unless `supervised.tasks` sets other options.
        """
        recipe = self.resolved.recipe
        if recipe.supervised is None or not recipe.supervised.tasks:
            return self.source
        options = {**recipe.tasks.options, **recipe.supervised.tasks}
        source = build_source(self.resolved, "supervised.tasks", options)
        self._report_skipped("supervised.tasks", source)
        return source

    @cached_property
    def models(self) -> Mapping[str, FrozenModel]:
        """Frozen models of the recipe (`models`), by name.

        Tools, environments and the policy can call them.
        """
        return frozen_models(self.resolved)

    @cached_property
    def environment(self) -> Callable[[], Environment]:
        """Function without arguments that creates the environment of one episode."""
        return build_environment(self.resolved, self._calls, models=self.models)

    def _environment_with(self, changes: Mapping[str, Any]) -> Callable[[], Environment]:
        return build_environment(self.resolved.with_changes(changes), self._calls, models=self.models)

    @cached_property
    def offered_tools(self) -> tuple[ToolSpec, ...]:
        """Tools that the environment offers to the policy.

        An MCP server is started to list its tools.
        """
        return list_tools(self.environment)

    @cached_property
    def loaded(self) -> tuple[Policy, ToolCallFormat]:
        """(policy without critic, tool-call format), loaded or randomly initialized."""
        materials = lambda: (self.source, self.environment)  # noqa: E731
        return build_policy(self.resolved, materials, self._policy, say=self.say)

    @cached_property
    def chat(self) -> Chat:
        """Converter between messages and tokens, with chat template and tool-call format."""
        return build_chat(self.resolved, *self.loaded)

    @cached_property
    def policy(self) -> Policy:
        """Policy in training, with its critic and frozen layers.

        It has a critic if the advantage estimator reads values.
        """
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
        """Number of tokens in the policy's input embeddings."""
        return int(self.loaded[0].model.get_input_embeddings().num_embeddings)  # type: ignore[operator]

    @cached_property
    def reward(self) -> Reward:
        """Reward function that scores an episode."""
        return build_reward(self.resolved, member=partial(reward_member, self))

    @cached_property
    def strategy(self) -> Strategy:
        """Rollout strategy, which samples the trajectories of a task (`rollout.strategy`)."""
        return build_strategy(self.resolved, self.source, self._vocabulary)

    @cached_property
    def search_strategy(self) -> Strategy | None:
        """Evaluation strategy that combines several attempts into one answer.

        None: each attempt is scored.
        """
        return build_evaluation_strategy(self.resolved)

    @cached_property
    def stored_reader(self) -> StoredReader:
        """Reader of stored episodes, used by stages whose `data` names a run or a log."""
        length = self.loaded[0].context_length
        return StoredReader(self.resolved, self.chat, self.environment, length, self.skipped_rows, self.say)

    @cached_property
    def method(self) -> MethodComponents:
        """Rollout components besides the strategy: curriculum, replay, filters and others.

        Their state in the checkpoint (`memory`) is loaded.
        """
        method = build_method(
            self.resolved, self.source, self._vocabulary, self.stored_reader, self._environment_with, self.models
        )
        if isinstance(self.reward, Stateful):
            method = replace(method, reward=self.reward)
        method.load_state(self.memory)
        return method

    @cached_property
    def credit(self) -> CreditParts:
        """Functions that compute advantages: estimator, shaping, transforms and filters."""
        return build_credit(self.resolved)

    @cached_property
    def objective(self) -> Callable[..., Any]:
        """Objective of the recipe: a function from columns to a loss.

        The names of its parameters are the names of the columns that it receives. A function of columns, each [T],
        returns a TokenLoss; a function of sums of log-probs, each [S], returns a SumLoss.
        """
        return build_objective(self.resolved)

    @cached_property
    def correction(self) -> Callable[..., Any] | None:
        """Importance sampling correction: a function from columns, each [T], to weights [T].

        The names of its parameters are the names of the columns that it receives. None: no correction.
        """
        return build_correction(self.resolved)

    @cached_property
    def loss_terms(self) -> tuple[LossTerm, ...]:
        """Loss terms of the recipe (`loss_terms`) that are added to the objective."""
        return build_loss_terms(self.resolved, self.objective)

    @cached_property
    def columns(self) -> tuple[Callable[..., Any], ...]:
        """Functions of `custom_columns`, which compute inputs of estimators and losses."""
        return build_custom_columns(self.resolved, provided_columns(self.reward))

    @cached_property
    def frozen(self) -> Mapping[str, Actor]:
        """Actors with frozen weights that play a seat instead of the policy, by role."""
        return build_frozen_actors(self)

    @cached_property
    def teacher_reads(self) -> Callable[[Trajectory, Task], Trajectory] | None:
        """Function that puts the same actions into the teacher's context.

        It receives an episode and its task, and returns the episode with the hint of `teacher.privileged_context` in
        it. None: the teacher reads the policy's context.
        """
        return teacher_reads(self.resolved, self.source, self.environment, self.chat)

    def restart(self, **components: Any) -> RunComponents:
        """Return a copy that builds the policy again, with the weights from the start of the run.

        Args:
            components: New value by attribute name, for components that also differ.
        """
        other = self.with_components(**{"_policy": None, **components})
        for name in ("loaded", "policy", "chat"):
            other.__dict__.pop(name, None)
        return other

    @property
    def trained(self) -> dict[str, Member]:
        """Members of `policies` that are sampled and trained in addition to `policy`, by name."""
        return {name: each for name, each in self.members.items() if each.is_trained and each.is_sampled}

    def build_components(self, *names: str) -> None:
        """Build the named components in this order, so that errors appear now.

        Args:
            names: Attribute names, such as `chat` or `reward`.

        Raises:
            WhetstoneError: If a component cannot be built.
        """
        for name in names:
            getattr(self, name)

    def check(self) -> RunComponents:
        """Build and check all components of the recipe.

        Returns:
            This object.

        Raises:
            WhetstoneError: If a name, option, file or folder is wrong; the message names the recipe key.
        """
        check_components(self)
        return self

    def _report_skipped(self, key: str, tasks: Source) -> None:
        """Store and log the number of invalid rows that a task source skipped."""
        if implements_protocol(tasks, ReportsSkipped) and tasks.skipped:
            self.skipped_rows[key] = tasks.skipped
            self.say(f"{key}: {tasks.skipped} invalid rows are skipped (tasks.on_bad_row: skip)")

    def build_engine(self, *, heard: Callable[[str], None] = lambda line: None) -> Engine:
        """Build an engine that samples from the policy in training.

        A local engine shares the trained weights, unless it continues to sample while they change or computes in half
        precision. Other engines receive the weights from the learner.

        Args:
            heard: Callback that receives a log line at each restart of the engine.

        Raises:
            RecipeError: If the engine cannot be created, or lacks a capability that the recipe requires.
        """
        if self.cluster is not None:
            return self.cluster.engine
        recipe = self.resolved.recipe
        ahead = recipe.reinforcement is not None and recipe.reinforcement.admit_ahead > 0
        policy = replace(self.policy, model=self.sampled_model(keeps_weights=ahead))
        arguments = {
            "policy": policy,
            "max_sequences": count_engine_sequences(self.resolved.recipe, policy),
            "heard": heard,
        }

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
        """Return the model that the engine samples from.

        It is the model in training itself, or a copy if the precision of sampling differs or the weights must not
        change.

        Args:
            keeps_weights: Whether the engine keeps its weights while an update changes those in training.
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
        if self.resolved.recipe.rollout.max_in_flight == "auto" and not implements_protocol(engine, ReportsLoad):
            name = self.resolved.recipe.engine.name
            problem = f"auto requires an engine that reports its load (measure_load), and {name} does not; set a number"
            raise self.resolved.error("rollout.max_in_flight", problem)

    def required_capabilities(self) -> dict[str, str]:
        """Return the engine capabilities that the recipe requires.

        Returns:
            Capability → the recipe key that requires it, for the error message.
        """
        recipe = self.resolved.recipe
        needed: dict[str, str] = {}
        if recipe.reinforcement is not None and recipe.reinforcement.deterministic:
            needed["seeds"] = "reinforcement.deterministic: true"
        if implements_protocol(self.strategy, ReadsEntropies) and self.strategy.reads_entropies:
            needed["entropies"] = f"rollout.strategy: {recipe.rollout.strategy.name}"
        if recipe.rollout.action_mask is not None:
            needed["constraints"] = f"rollout.action_mask: {recipe.rollout.action_mask.name}"
        if self.reads_columns("entropies", "turn_entropies"):
            needed["entropies"] = "the column of entropies that credit or objective reads"
        return needed

    def learning_spec(self, settings: ReinforcementSettings) -> LearningSpec:
        """Return the settings with which the learner of a stage trains on groups.

        Args:
            settings: Settings of the stage, in the form of `reinforcement`.
        """
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

    def reads_columns(self, *names: str) -> bool:
        """Return whether an estimator, the objective or a loss term reads a column.

        Args:
            names: Names of columns; True if any of them is read.
        """
        functions = [
            *(each for _, each in self.credit.list_functions()),
            self.objective,
            *(t.function for t in self.loss_terms),
        ]
        return any(name in column_names(function) for function in functions for name in names)

    def build_collector(
        self,
        actor: Actor,
        *,
        record: EpisodeRecord | None = None,
        method: MethodComponents | None = None,
        max_turns: int | None = None,
    ) -> Collector:
        """Build a collector, which samples episodes in which `actor` acts as the policy.

        The collector runs in the workers of `cluster` if the run has one.

        Args:
            actor: Actor of the policy's seat.
            record: Record that stores the episodes; None: they are not stored.
            method: Components around the strategy. None: those of an evaluation if a policy acts, and none if an expert
                acts.
            max_turns: Maximum number of turns of an episode; None: `environment.max_turns`.
        """
        if method is None:
            method = MethodComponents() if isinstance(actor, ExpertActor) else self.method.at_evaluation()
        recipe = self.resolved.recipe
        limits = EpisodeLimits(
            max_turns=max_turns or recipe.environment.max_turns,
            context_length=_ANY_LENGTH if isinstance(actor, EndpointActor) else self.policy.context_length,
            timeout_seconds=recipe.environment.timeout_seconds,
        )
        collector = Collector(
            environment=self.environment,
            actor=actor,
            chat=self.chat,
            reward=self.reward,
            limits=limits,
            max_in_flight=recipe.rollout.max_episodes,
            concurrency=build_controller(recipe) if isinstance(actor, PolicyActor) else None,
            can_cancel=not recipe.environment.allow_effects,
            record=record,
            turn_deadline=turn_deadline(recipe.environment.turn_timeout_seconds),
            group_deadline=group_deadline(
                recipe.rollout.group_timeout_seconds if isinstance(actor, PolicyActor) else "none"
            ),
            reward_timeout_seconds=recipe.rollout.reward_timeout_seconds,
            busy_seconds=(lambda: actor.engine.statistics.busy_seconds) if isinstance(actor, PolicyActor) else None,
            method=method,
            expert=self.expert_actor() if isinstance(self.demonstration_source, Expert) else None,
            others={**self.frozen, **build_member_actors(self)},
            tool_watch=self.tool_watch,
        )
        return collector if self.cluster is None else self.cluster.distribute_collector(collector)

    def policy_actor(self, engine: Engine, *, temperature: float, member: str | None = None) -> PolicyActor:
        """Return an actor that samples from an engine with the sampling settings of the recipe.

        Args:
            engine: Engine of the member that acts.
            temperature: Sampling temperature; 0 is greedy decoding.
            member: Name of the member that the engine samples from; None: the member of `policy`.
        """
        sampling = build_sampling(self.resolved.recipe.rollout, self.chat, temperature)
        return PolicyActor(engine, sampling, self.chat.stop_ids, self.member if member is None else member)

    def build_demonstration_collector(self) -> Collector:
        """Build a collector of the expert's demonstrations, with their own maximum number of turns.

        Raises:
            RecipeError: If the task source has no expert.
        """
        settings = self.resolved.recipe.supervised
        return self.build_collector(self.expert_actor(), max_turns=settings.max_turns if settings else None)

    def expert_actor(self) -> ExpertActor:
        """Return an actor that plays with the expert of the task source.

        Raises:
            RecipeError: If the task source has no expert.
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
    """Return the components of a recipe; nothing is built until a component is requested.

    Call `check` on the result to build and check all components.

    Args:
        resolved: Recipe of the run.
        policy: Policy to use instead of the policy of the recipe.
        memory: State of the method's components and of the members, from a checkpoint.
        say: Callback that receives log lines.
        calls: Policy that decides which tools are really called; None: the call policy of a run.

    Raises:
        RecipeError: If an environment variable of the recipe is not set, or `start_from` names no checkpoint.
    """
    resolved.check_variables()
    return RunComponents(resolve_start(resolved), policy, memory, say=say, calls=calls)


def build_scoring_components(
    resolved: Resolved, calls: CallPolicy | None = None
) -> tuple[Source, Callable[[], Environment], Reward]:
    """Build the components that score an episode without a model.

    Args:
        resolved: Recipe.
        calls: Policy that decides which tools are really called; None: the call policy of a run.

    Returns:
        (task source, function that creates an environment, reward).

    Raises:
        WhetstoneError: If a component cannot be built, or an environment variable of the recipe is not set.
    """
    resolved.check_variables()
    source = build_source(resolved, "tasks", resolved.recipe.tasks.options)
    return source, build_environment(resolved, calls), RunComponents(resolved).reward


def build_credit(resolved: Resolved) -> CreditParts:
    """Build the functions that compute advantages from rewards.

    Raises:
        RecipeError: If a name or option is wrong, or a credit filter is listed twice.
    """
    recipe, filters = resolved.recipe, [part.name for part in resolved.recipe.credit_filters]
    for k, name in enumerate(filters):
        if name in filters[:k]:
            raise resolved.error(f"credit_filters.{k}", f'"{name}" is listed twice')
    advantage = build_function(resolved, "advantage", recipe.advantage, ADVANTAGES)
    shaping = _functions(resolved, "reward_shaping", recipe.reward_shaping, SHAPING)
    transforms = _functions(resolved, "advantage_transforms", recipe.advantage_transforms, ADVANTAGE_TRANSFORMS)
    functions = _functions(resolved, "credit_filters", recipe.credit_filters, CREDIT_FILTERS)
    return CreditParts(
        advantage=advantage,
        shaping=shaping,
        advantage_transforms=transforms,
        filters=dict(zip(filters, functions, strict=True)),
    )


def build_objective(resolved: Resolved) -> Callable[..., Any]:
    """Build the objective of a recipe, with its options bound.

    Raises:
        RecipeError: If the name or an option is wrong.
    """
    objective: Callable[..., Any] = build_function(resolved, "objective", resolved.recipe.objective, OBJECTIVES)
    return objective


def build_correction(resolved: Resolved) -> Callable[..., Any] | None:
    """Build the importance sampling correction of a recipe; None if the recipe has none.

    Raises:
        RecipeError: If the name or an option is wrong.
    """
    key, part = "importance_correction", resolved.recipe.importance_correction
    return None if part is None else build_function(resolved, key, part, CORRECTIONS, kind="importance correction")


def _functions(resolved: Resolved, section: str, parts: Sequence[Part], built_in: Mapping[str, Any]) -> tuple[Any, ...]:
    """Build the functions of a list in the recipe, with their options bound."""
    return tuple(
        build_function(resolved, f"{section}.{k}", part, built_in, kind=section.replace("_", " ").removesuffix("s"))
        for k, part in enumerate(parts)
    )


def teacher_reads(
    resolved: Resolved, source: Source, environment: Callable[[], Environment], chat: Chat
) -> WithHint | None:
    """Build the function that inserts a hint into the teacher's context.

    The hint is `teacher.privileged_context`: a private column of the tasks, or a function.

    Returns:
        The function; None if the teacher reads the policy's context.

    Raises:
        RecipeError: If the hint names no function and no private column of the tasks.
    """
    named = resolved.recipe.teacher.privileged_context if resolved.recipe.teacher is not None else None
    if named is None:
        return None
    hint = lookup_component(resolved, "teacher.privileged_context", "function", named, {}) if ":" in named else named
    reads, task = WithHint(hint, chat, list_tools(environment)), source.task(0)
    if isinstance(hint, str) and hint not in task.private:
        known = ", ".join(sorted(task.private)) or "nothing"
        raise resolved.error("teacher.privileged_context", f"task {task.id} has no private `{hint}`; it has {known}")
    return reads
