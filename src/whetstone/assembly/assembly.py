"""Components of a run, each built when it is first requested.

`assemble` reads a recipe and builds nothing. `Assembly.check` builds and checks all components in the order of the
data, so that a mistake in a recipe is reported before anything is sampled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from whetstone.algorithms import LossTerm, columns_of
from whetstone.assembly.column_requirements import added_columns
from whetstone.assembly.compatibility import check_critic
from whetstone.assembly.component_checks import check_components
from whetstone.assembly.credit import correction_of, credit_of, objective_of
from whetstone.assembly.environment import environment_of
from whetstone.assembly.frozen_models import frozen_models
from whetstone.assembly.instantiate import part_of
from whetstone.assembly.loss_terms import added_loss_terms
from whetstone.assembly.members import Member
from whetstone.assembly.methods import method_of, searching_of, strategy_of
from whetstone.assembly.policy import chat_of, policy_of
from whetstone.assembly.seats import frozen_actors, member_actors, sampling_of
from whetstone.assembly.stored_data import StoredReader
from whetstone.assembly.task_components import reward_of, source_of
from whetstone.assembly.teacher import teacher_reads
from whetstone.chat import Chat, ToolCallFormat
from whetstone.contracts import fulfils
from whetstone.environments import Environment
from whetstone.errors import PolicyError, RecipeError
from whetstone.inference import ENGINES, Engine, RestartingEngine, merges, require
from whetstone.learning.columns import critic_heads
from whetstone.learning.credit import CreditParts
from whetstone.learning.loss_terms import expand_loss_terms
from whetstone.learning.spec import ColumnSources, LearningSpec
from whetstone.policies import (
    Policy,
    clone_trainable,
    critic_for,
    freeze,
)
from whetstone.recipe import ReinforcementSettings, Resolved
from whetstone.record.starting import resolve_start
from whetstone.rewards import Reward, provided_by
from whetstone.rollout import (
    Actor,
    Collector,
    EndpointActor,
    EpisodeRecord,
    ExpertActor,
    Limits,
    Method,
    PolicyActor,
    Strategy,
)  # fmt: skip
from whetstone.rollout.cluster import Cluster
from whetstone.rollout.deadlines import group_deadline, turn_deadline
from whetstone.rollout.optional import ReadsEntropies
from whetstone.rollout.protocol import Stateful
from whetstone.tasks import Expert, Source
from whetstone.tasks.protocol import Skips
from whetstone.tool_calls import ToolWatch
from whetstone.tools import CallPolicy
from whetstone.tools.models import FrozenModel
from whetstone.trajectory import Task, Trajectory

_ANY_LENGTH = 1 << 40
"""Of a context that somebody else keeps."""


class Assembly:
    """Components of a run, each built when it is first requested and then kept.

    Args:
        resolved: Recipe of the run.
        policy: Policy that is used instead of the one of the recipe, such as one from a checkpoint.
        memory: State of the components of the method, from a checkpoint.
        say: Callback for lines about what was chosen or left out.
        calls: Tools that are called; None: those that a run calls.
        checkpoint: Checkpoint that `policy` comes from, whose members are loaded; None: members start as the recipe
            specifies.
    """

    def __init__(
        self,
        resolved: Resolved,
        policy: Policy | None = None,
        memory: Mapping[str, Any] | None = None,
        *,
        say: Callable[[str], None] = lambda line: None,
        calls: CallPolicy | None = None,
        checkpoint: Path | None = None,
    ) -> None:
        self.resolved, self.say, self.checkpoint = resolved, say, checkpoint
        self.member = next(iter(resolved.recipe.policies), "")
        """Name of the member that `policy` is; empty if the recipe has only `policy`."""
        self.members: Mapping[str, Member] = {}
        """Other members of `policies`, from the start of reinforcement (`open_members`)."""
        self._policy, self._memory, self._calls = policy, memory or {}, calls
        self.skipped_rows: dict[str, int] = {}
        """Number of invalid rows that were skipped (`on_bad_row: skip`), by the recipe key of their file."""
        self.checked_data: dict[str, tuple[Any, Any]] = {}
        """(settings, data) of stages whose data is checked before the run starts, by the recipe key; read once."""
        self.tool_watch = ToolWatch(say)
        """Reports tools that fail in every call; shared by all collectors."""
        self.cluster: Cluster | None = None
        """Location of engine and episodes, if they are not in this process."""

    def with_components(self, **components: Any) -> Assembly:
        """Return an assembly with other components; all components that are built are shared."""
        changed = copy(self)
        changed.__dict__.update(components)
        return changed

    @cached_property
    def source(self) -> Source:
        """Source of tasks."""
        source = source_of(self.resolved, "tasks", self.resolved.recipe.tasks.options)
        self._report_skipped("tasks", source)
        return source

    @cached_property
    def demonstrated(self) -> Source:
        """Source of the tasks of demonstrations; `source`, unless the warm-up has options of its own."""
        recipe = self.resolved.recipe
        if recipe.supervised is None or not recipe.supervised.tasks:
            return self.source
        options = {**recipe.tasks.options, **recipe.supervised.tasks}
        source = source_of(self.resolved, "supervised.tasks", options)
        self._report_skipped("supervised.tasks", source)
        return source

    @cached_property
    def models(self) -> Mapping[str, FrozenModel]:
        """Frozen models of `models`, by name."""
        return frozen_models(self.resolved)

    @cached_property
    def environment(self) -> Callable[[], Environment]:
        """Function that creates the environment of an episode."""
        return environment_of(self.resolved, self._calls, models=self.models)

    @cached_property
    def loaded(self) -> tuple[Policy, ToolCallFormat]:
        """Policy without critic, and its tool-call format."""
        materials = lambda: (self.source, self.environment)  # noqa: E731
        return policy_of(self.resolved, materials, self._policy, say=self.say)

    @cached_property
    def chat(self) -> Chat:
        """Chat template of the policy, and its tool-call format."""
        return chat_of(self.resolved, *self.loaded)

    @cached_property
    def policy(self) -> Policy:
        """Policy in training, with its critic."""
        resolved, recipe, policy = self.resolved, self.resolved.recipe, self.loaded[0]
        if recipe.critic is not None:
            heads = critic_heads(columns_of(self.credit.advantage), ensemble=recipe.critic.ensemble_size)
            check_critic(resolved, heads)
            critic = critic_for(
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
            freeze(policy, recipe.policy.freeze)
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
        return reward_of(self.resolved)

    @cached_property
    def strategy(self) -> Strategy:
        """Strategy that samples the trajectories of a task."""
        return strategy_of(self.resolved, self.source, self._vocabulary)

    @cached_property
    def searching(self) -> Strategy | None:
        """Strategy that makes an answer of several attempts in an evaluation; None: each attempt counts."""
        return searching_of(self.resolved)

    @cached_property
    def stored_reader(self) -> StoredReader:
        """Reader of the stored episodes that `data` names."""
        length = self.loaded[0].context_length
        return StoredReader(self.resolved, self.chat, self.environment, length, self.skipped_rows, self.say)

    @cached_property
    def method(self) -> Method:
        """Components around the strategy, with their state."""
        method = method_of(self.resolved, self.source, self._vocabulary, self.stored_reader)
        if isinstance(self.reward, Stateful):
            method = replace(method, reward=self.reward)
        method.load_state(self._memory)
        return method

    @cached_property
    def credit(self) -> CreditParts:
        """Functions that compute advantages."""
        return credit_of(self.resolved)

    @cached_property
    def objective(self) -> Callable[..., Any]:
        """Columns of its parameters' names, each [T] → TokenLoss; or sums [S] → SumLoss."""
        return objective_of(self.resolved)

    @cached_property
    def correction(self) -> Callable[..., Any] | None:
        """Columns of its parameters' names, each [T] → [T] weights; None: no correction."""
        return correction_of(self.resolved)

    @cached_property
    def loss_terms(self) -> tuple[LossTerm, ...]:
        """Terms that are added to the objective."""
        return added_loss_terms(self.resolved, self.objective)

    @cached_property
    def columns(self) -> tuple[Callable[..., Any], ...]:
        """Columns that the recipe adds to the built-in ones."""
        return added_columns(self.resolved, provided_by(self.reward))

    @cached_property
    def frozen(self) -> Mapping[str, Actor]:
        """Actors that play a seat instead of the policy, by role."""
        return frozen_actors(self)

    @cached_property
    def teacher_reads(self) -> Callable[[Trajectory, Task], Trajectory] | None:
        """Function that returns an episode as the teacher reads it: the same actions in other contexts. None: as the
        policy did."""
        return teacher_reads(self.resolved, self.source, self.environment, self.chat)

    def restart(self) -> Assembly:
        """Return an assembly whose policy is built again, as a run starts with it."""
        other = self.with_components(_policy=None, say=lambda line: None)
        for name in ("loaded", "policy", "chat"):
            other.__dict__.pop(name, None)
        return other

    @property
    def trained(self) -> dict[str, Member]:
        """Members that are trained in addition to `policy`."""
        return {name: member for name, member in self.members.items() if member.is_trained}

    def build(self, *names: str) -> None:
        """Build components, in this order.

        Raises:
            WhetstoneError: One cannot be built.
        """
        for name in names:
            getattr(self, name)

    def check(self) -> Assembly:
        """Build and check all components.

        Returns:
            This assembly.

        Raises:
            WhetstoneError: A name, option, file or folder is wrong; the message has the key.
        """
        check_components(self)
        return self

    def _report_skipped(self, key: str, tasks: Source) -> None:
        if fulfils(tasks, Skips) and tasks.skipped:
            self.skipped_rows[key] = tasks.skipped
            self.say(f"{key}: {tasks.skipped} invalid rows are skipped (tasks.on_bad_row: skip)")

    def engine(self, *, heard: Callable[[str], None] = lambda line: None) -> Engine:
        """An engine that draws from the policy in training.

        A local one shares the weights that are trained, unless it is to go on drawing while they change or they are
        computed in shorter numbers; others are given them.

        Args:
            heard: Told where one died and another took its place.
        """
        if self.cluster is not None:
            return self.cluster.engine
        recipe = self.resolved.recipe
        ahead = recipe.reinforcement is not None and recipe.reinforcement.admit_ahead > 0
        policy = replace(self.policy, model=self.sampled_model(apart=ahead))
        given = {"policy": policy, "max_sequences": recipe.rollout.max_in_flight, "heard": heard}

        def made(version: int) -> Engine:  # another over the same model draws from the weights that were last loaded
            engine: Engine = part_of(
                self.resolved,
                "engine",
                "engine",
                recipe.engine,
                ENGINES,
                {**given, "version": version},
                protocol=Engine,
            )
            return engine

        first = made(0)
        self._check_abilities(first)
        # one behind a server keeps the weights it was given, for the server that takes another's place
        return first if isinstance(first, RestartingEngine) else RestartingEngine(made, heard=heard, first=first)

    def sampled_model(self, *, apart: bool = False) -> torch.nn.Module:
        """The model as it is sampled: with the weights that are trained, or those rounded to what it is computed in.

        Args:
            apart: Whether it goes on with its weights while they are trained.
        """
        model, dtype = self.policy.model, self.policy.dtype
        if merges(self.policy):  # the engine makes a copy
            return clone_trainable(model) if apart else model
        if apart or any(parameter.dtype != dtype for parameter in model.parameters()):
            return clone_trainable(model, dtype=dtype)
        return model

    def _check_abilities(self, engine: Engine) -> None:
        """Refuse an engine that does not give what the recipe needs.

        Raises:
            RecipeError: It lacks something; the message says who has it.
        """
        try:
            require(engine.abilities, self.needed_abilities(), engine=self.resolved.recipe.engine.name)
        except RecipeError as error:
            raise self.resolved.error("engine", str(error)) from None

    def needed_abilities(self) -> dict[str, str]:
        """Abilities of an engine that the recipe needs, each with what needs it."""
        recipe = self.resolved.recipe
        needed: dict[str, str] = {}
        if recipe.reinforcement is not None and recipe.reinforcement.deterministic:
            needed["seeds"] = "reinforcement.deterministic: true"
        if fulfils(self.strategy, ReadsEntropies) and self.strategy.reads_entropies:
            needed["entropies"] = f"rollout.strategy: {recipe.rollout.strategy.name}"
        if self.reads("entropies", "turn_entropies"):
            needed["entropies"] = "the column of entropies that credit or objective reads"
        return needed

    def learning_spec(self, settings: ReinforcementSettings) -> LearningSpec:
        """How groups are learned from in a stage."""
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
        functions = [*(each for _, each in self.credit.every()), self.objective, *(t.function for t in self.loss_terms)]
        return any(name in columns_of(function) for function in functions for name in names)

    def collector(
        self, actor: Actor, *, record: EpisodeRecord | None = None, method: Method | None = None
    ) -> Collector:
        """Runs episodes of this recipe with `actor` in them.

        Args:
            method: What is done around them; None: what belongs to the agent, as in an evaluation, where the policy
                acts, and nothing where an expert does.
        """
        if method is None:
            method = Method() if isinstance(actor, ExpertActor) else self.method.at_evaluation()
        recipe = self.resolved.recipe
        limits = Limits(
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
            expert=self.expert_actor() if isinstance(self.demonstrated, Expert) else None,
            others={**self.frozen, **member_actors(self)},
            tool_watch=self.tool_watch,
        )
        return collector if self.cluster is None else self.cluster.spread(collector)

    def policy_actor(self, engine: Engine, *, temperature: float, member: str | None = None) -> PolicyActor:
        """Return an actor that samples with the settings of this recipe.

        Args:
            member: Name of the member whose engine it is; None: that of `policy`.
        """
        sampling = sampling_of(self.resolved.recipe.rollout, self.chat, temperature)
        return PolicyActor(engine, sampling, self.chat.stop_ids, self.member if member is None else member)

    def expert_actor(self) -> ExpertActor:
        """The source's expert.

        Raises:
            RecipeError: The source has none.
        """
        if not isinstance(self.demonstrated, Expert):
            raise RecipeError(f'the source "{self.resolved.recipe.tasks.source}" has no expert')
        return ExpertActor(self.demonstrated, self.chat)


def assemble(
    resolved: Resolved,
    policy: Policy | None = None,
    memory: Mapping[str, Any] | None = None,
    *,
    say: Callable[[str], None] = lambda line: None,
    calls: CallPolicy | None = None,
    checkpoint: Path | None = None,
) -> Assembly:
    """Return the components of a recipe. They are built when they are requested, and checked by `Assembly.check`.

    Args:
        policy: Same as for `Assembly`.
        memory: Same as for `Assembly`.
        say: Same as for `Assembly`.
        calls: Same as for `Assembly`.
        checkpoint: Same as for `Assembly`.

    Raises:
        RecipeError: A variable has no value, or `start_from` names no checkpoint.
    """
    resolved.check_variables()
    return Assembly(resolve_start(resolved), policy, memory, say=say, calls=calls, checkpoint=checkpoint)


def judged_parts(
    resolved: Resolved, calls: CallPolicy | None = None
) -> tuple[Source, Callable[[], Environment], Reward]:
    """(tasks, what makes an environment, reward) of a recipe: all that is needed to judge, and no model.

    Args:
        calls: Which tools are called; None: those that a run calls.

    Raises:
        WhetstoneError: As `assemble`.
    """
    resolved.check_variables()
    source = source_of(resolved, "tasks", resolved.recipe.tasks.options)
    return source, environment_of(resolved, calls), reward_of(resolved)
