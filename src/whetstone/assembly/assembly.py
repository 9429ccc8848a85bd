"""How does a recipe become things that run? Each name is looked up, each option checked, each part made once.

Easy to get wrong: a mistake in a recipe should cost a second, not the first hour. Everything is made and
checked here, before anything is sampled.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from whetstone.algorithms import (
    ADVANTAGE_TRANSFORMS,
    ADVANTAGES,
    CORRECTIONS,
    CREDIT_FILTERS,
    OBJECTIVES,
    SHAPING,
    columns_of,
)
from whetstone.assembly.column_requirements import added_columns
from whetstone.assembly.compatibility import (
    check_critic,
    check_group,
    check_judging,
    check_needs,
    check_objective,
    check_observations,
    check_use,
    try_functions,
    try_on_nothing,
)
from whetstone.assembly.environment import environment_of
from whetstone.assembly.frozen_models import frozen_models
from whetstone.assembly.instantiate import found, function_of, part_of
from whetstone.assembly.learner_processes import check_learner_processes
from whetstone.assembly.methods import check_method, method_of, searching_of, strategy_of
from whetstone.assembly.policy import chat_of, policy_of
from whetstone.assembly.stored_data import StoredReader
from whetstone.assembly.task_components import reward_of, source_of
from whetstone.assembly.teacher import teacher_reads
from whetstone.chat import Chat
from whetstone.contracts import fulfils
from whetstone.environments import Environment
from whetstone.environments.protocol import tools_shown
from whetstone.errors import PolicyError, RecipeError
from whetstone.inference import ENGINES, Engine, RestartingEngine, Sampling, merges, require
from whetstone.learning.columns import RunCapabilities, by_name, critic_heads
from whetstone.learning.credit import CreditParts
from whetstone.learning.factory import LEARNERS
from whetstone.learning.optimizer import check_optimizer
from whetstone.learning.spec import LearningSpec
from whetstone.policies import (
    Policy,
    clone_trainable,
    critic_for,
    freeze,
    load_policy,
)
from whetstone.recipe import Part, ReinforcementSettings, Resolved, RolloutSettings
from whetstone.record.starting import resolve_start
from whetstone.rewards import Reward, provided_by
from whetstone.rollout import (
    Actor,
    Collector,
    EndpointActor,
    EpisodeRecord,
    ExpertActor,
    FrozenActor,
    Limits,
    Method,
    ModelActor,
    PolicyActor,
    Strategy,
)  # fmt: skip
from whetstone.rollout.cluster import Cluster
from whetstone.rollout.deadlines import group_deadline, turn_deadline
from whetstone.rollout.optional import FrozenSeats, ReadsEntropies, provided
from whetstone.rollout.protocol import Stateful
from whetstone.tasks import Expert, Source
from whetstone.tasks.protocol import Skips
from whetstone.tool_calls import ToolWatch
from whetstone.tools import CallPolicy
from whetstone.trajectory import Task, Trajectory

_ANY_LENGTH = 1 << 40
"""Of a context that somebody else keeps."""


@dataclass(frozen=True, slots=True)
class Assembly:
    """All parts of a run."""

    resolved: Resolved
    policy: Policy
    chat: Chat
    source: Source
    demonstrated: Source
    """Where the tasks of demonstrations come from; `source` unless the warm-up has options of its own."""
    environment: Callable[[], Environment]
    reward: Reward
    strategy: Strategy
    searching: Strategy | None
    """How an answer comes of several tries in an evaluation; None: each stands for itself."""
    method: Method
    """What is done around it."""
    frozen: Mapping[str, Actor]
    """Who plays a seat in the policy's place, by role."""
    credit: CreditParts
    """What advantages are made of."""
    objective: Callable[..., Any]
    """Columns of its parameters' names, each [T] → TokenLoss; or sums [S] → SumLoss"""
    correction: Callable[..., Any] | None
    """Columns of its parameters' names, each [T] → [T] weights"""
    columns: tuple[Callable[..., Any], ...]
    """Columns the recipe adds to ours."""
    stored_reader: StoredReader
    """Reads the stored episodes that `data` names."""
    teacher_reads: Callable[[Trajectory, Task], Trajectory] | None
    """An episode as the teacher reads it, the same actions in other contexts; None: as the policy did."""
    skipped_rows: dict[str, int] = field(default_factory=dict)
    """Number of invalid rows that were skipped (`on_bad_row: skip`), by the recipe key of their file."""
    checked_data: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    """(settings, data) of stages whose data is checked before the run starts, by the recipe key; read once."""
    say: Callable[[str], None] = lambda line: None
    """Receives lines about the data of a stage."""
    tool_watch: ToolWatch = field(default_factory=lambda: ToolWatch(lambda line: None))
    """Reports tools that fail in every call; shared by all collectors."""
    cluster: Cluster | None = None
    """Where engine and episodes are, when they are not in this process."""

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
            objective=self.objective,
            correction=self.correction,
            aggregation=recipe.aggregation,
            critic=recipe.critic,
            temperature=recipe.rollout.temperature,
            seed=recipe.seed,
            roles=recipe.role_tag,
            chat=self.chat,
            teacher_reads=self.teacher_reads,
            columns=self.columns,
        )

    def reads(self, *names: str) -> bool:
        """Whether credit or objective read any of these columns."""
        functions = [*(function for _, function in self.credit.every()), self.objective]
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
            others=self.frozen,
            tool_watch=self.tool_watch,
        )
        return collector if self.cluster is None else self.cluster.spread(collector)

    def policy_actor(self, engine: Engine, *, temperature: float) -> PolicyActor:
        """The policy as it is sampled in this recipe."""
        sampling = _sampling(self.resolved.recipe.rollout, self.chat, temperature)
        return PolicyActor(engine, sampling, self.chat.stop_ids)

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
) -> Assembly:
    """Make every part a recipe names.

    Args:
        policy: Taken instead of the recipe's own, such as one from a checkpoint.
        memory: What parts of the method remember, from there too.
        say: Told what takes a while, and what was left out.
        calls: Which tools are called; None: those that a run calls.

    Raises:
        WhetstoneError: A name, option, file or folder is wrong; the message says where it was written.
    """
    resolved.check_variables()
    resolved = resolve_start(resolved)
    recipe = resolved.recipe
    source: Source = source_of(resolved, "tasks", recipe.tasks.options)
    demonstrated = source
    if recipe.supervised is not None and recipe.supervised.tasks:
        options = {**recipe.tasks.options, **recipe.supervised.tasks}
        demonstrated = source_of(resolved, "supervised.tasks", options)
    imitation = recipe.reinforcement.imitation if recipe.reinforcement is not None else None
    warm_up = recipe.supervised if recipe.supervised is not None and recipe.supervised.data is None else None
    for key, asks in (("supervised", warm_up), ("reinforcement.imitation", imitation)):
        if asks is not None and not isinstance(demonstrated, Expert):
            said = f'the source "{recipe.tasks.source}" has no expert to learn from; set {key}: null'
            raise resolved.error(key, said)
    for key, part, built_in in (("engine", recipe.engine, ENGINES), ("learner", recipe.learner, LEARNERS)):
        found(resolved, key, key, part.name, built_in)
    for key, stage in recipe.own_stages.items():
        try:
            check_optimizer(stage)
        except RecipeError as error:
            raise resolved.error(f"{key}.optimizer", str(error)) from None
    skipped_rows: dict[str, int] = {}
    for key, tasks in {
        "tasks": source,
        **({} if demonstrated is source else {"supervised.tasks": demonstrated}),
    }.items():
        if fulfils(tasks, Skips) and tasks.skipped:
            skipped_rows[key] = tasks.skipped
            say(f"{key}: {tasks.skipped} invalid rows are skipped (tasks.on_bad_row: skip)")
    environment = environment_of(resolved, calls)
    policy, format = policy_of(resolved, source, environment, policy, say=say)
    reward = reward_of(resolved)
    built = environment()
    check_judging(resolved, reward, built, source)
    undescribed = [spec.name for spec in tools_shown(built) if not spec.description]
    if undescribed:
        say(f"tools without a docstring: {', '.join(undescribed)}; add one, it is the description that the model reads")
    chat = chat_of(resolved, policy, format)
    check_learner_processes(resolved, policy, say=say)
    vocabulary: int = policy.model.get_input_embeddings().num_embeddings  # type: ignore[operator]
    strategy = strategy_of(resolved, source, vocabulary)
    reader = StoredReader(resolved, chat, environment, policy.context_length, skipped_rows, say)
    method = method_of(resolved, source, vocabulary, reader)
    if isinstance(reward, Stateful):
        method = replace(method, reward=reward)
    method.load_state(memory or {})
    check_method(resolved, strategy, method, source, environment)
    for k, part in enumerate(recipe.credit_filters):
        if part.name in {other.name for other in recipe.credit_filters[:k]}:
            raise resolved.error(f"credit_filters.{k}", f'"{part.name}" is listed twice')
    credit = CreditParts(
        advantage=function_of(resolved, "advantage", recipe.advantage, ADVANTAGES),
        shaping=_functions(resolved, "reward_shaping", recipe.reward_shaping, SHAPING),
        advantage_transforms=_functions(
            resolved, "advantage_transforms", recipe.advantage_transforms, ADVANTAGE_TRANSFORMS
        ),
        filters=dict(
            zip(
                (part.name for part in recipe.credit_filters),
                _functions(resolved, "credit_filters", recipe.credit_filters, CREDIT_FILTERS),
                strict=True,
            )
        ),
    )
    objective = function_of(resolved, "objective", recipe.objective, OBJECTIVES)
    key, correction = "importance_correction", None
    if recipe.importance_correction is not None:
        kind = "importance correction"
        correction = function_of(resolved, key, recipe.importance_correction, CORRECTIONS, kind=kind)
        try_on_nothing(resolved, key, correction)
    try_functions(resolved, credit, objective)
    added = added_columns(resolved, provided_by(reward))
    if recipe.reinforcement is not None:
        run = RunCapabilities(recipe, functools.partial(source.task, 0), provided_by(reward), provided(strategy))
        check_needs(resolved, credit, objective, run, by_name(added))
    reads = {name for _, each in (*credit.every(), ("", objective)) for name in columns_of(each)}
    check_use(resolved, reads, by_name(added))
    check_objective(resolved, objective)
    check_observations(resolved, credit)
    check_group(resolved, credit, objective)
    if recipe.critic is not None:
        heads = critic_heads(columns_of(credit.advantage), ensemble=recipe.critic.ensemble_size)
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
    return Assembly(
        resolved=resolved,
        policy=policy,
        chat=chat,
        source=source,
        demonstrated=demonstrated,
        environment=environment,
        reward=reward,
        strategy=strategy,
        searching=searching_of(resolved),
        method=method,
        frozen=_frozen(resolved, strategy, policy, chat),
        credit=credit,
        objective=objective,
        correction=correction,
        columns=added,
        stored_reader=reader,
        teacher_reads=teacher_reads(resolved, source, environment, chat),
        skipped_rows=skipped_rows,
        say=say,
        tool_watch=ToolWatch(say),
    )


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


def _frozen(resolved: Resolved, strategy: Strategy, policy: Policy, chat: Chat) -> dict[str, Actor]:
    """The models that the strategy puts into seats: the recipe's `models` by name, and those of folders, each with an
    engine of its own.

    Raises:
        RecipeError: A folder holds no model, or one with other tokens.
    """
    actors: dict[str, Actor] = {}
    rollout = resolved.recipe.rollout
    seated = strategy.frozen if fulfils(strategy, FrozenSeats) else None
    models = frozen_models(resolved) if set((seated or {}).values()) & set(resolved.recipe.models) else {}
    for role, folder in (seated or {}).items():
        if folder in models:
            actors[role] = ModelActor(models[folder], chat)
            continue
        try:
            trusted = resolved.recipe.policy.trust_remote_code
            other = load_policy(folder, trust_remote_code=trusted, device=policy.device)
        except PolicyError as error:
            raise resolved.error("rollout.strategy", f"frozen.{role}: {error}") from None
        if other.tokenizer.get_vocab() != policy.tokenizer.get_vocab():
            raise resolved.error("rollout.strategy", f"frozen.{role}: {folder} has other tokens than the policy")
        held = clone_trainable(other.model.requires_grad_(False), dtype=policy.dtype)
        engine = ENGINES["local"](policy=replace(other, model=held), max_sequences=rollout.max_in_flight)
        sampling = _sampling(rollout, chat, rollout.temperature)
        actors[role] = FrozenActor(PolicyActor(engine, sampling, chat.stop_ids))
    return actors


def _sampling(settings: RolloutSettings, chat: Chat, temperature: float) -> Sampling:
    return Sampling(
        max_new_tokens=settings.max_new_tokens,
        temperature=temperature,
        top_k=settings.top_k,
        top_p=settings.top_p,
        min_p=settings.min_p,
        stop_strings=(*chat.format.stops, *settings.stop_strings),
    )


def _functions(resolved: Resolved, section: str, parts: Sequence[Part], built_in: Mapping[str, Any]) -> tuple[Any, ...]:
    """The named functions, each with its options bound."""
    return tuple(
        function_of(resolved, f"{section}.{k}", part, built_in, kind=section.replace("_", " ").removesuffix("s"))
        for k, part in enumerate(parts)
    )
