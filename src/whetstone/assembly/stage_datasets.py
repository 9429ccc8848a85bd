"""Data of the stages of a recipe, read and checked completely before anything is trained.

Note:
    An error in the last line of a file must be found before the first step.
"""

from __future__ import annotations

import functools
import itertools
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar, cast

from whetstone.algorithms import OBJECTIVES
from whetstone.assembly.assembly import RunComponents
from whetstone.assembly.instantiate import build_function, lookup_component
from whetstone.assembly.offline_data import count_skipped
from whetstone.chat import Message, ToolSpec
from whetstone.data import (
    Conversation,
    Demonstrations,
    Preference,
    Preferences,
    ShuffledIndices,
    StoredMixture,
    Texts,
    conversation_rows,
    get_text,
    read_conversation,
    read_preference,
)
from whetstone.data.conversations import LEARNED_FROM, DataUsage, all_assistant_turns
from whetstone.data.decontamination import find_leaks
from whetstone.data.demonstrations import ImitationSource
from whetstone.data.offline_episodes import best_and_worst, is_offline
from whetstone.data.policy_limits import PolicyLimits
from whetstone.data.row_readers import Row, read_all
from whetstone.data.select_episodes import get_reward, is_imitated
from whetstone.errors import DataError
from whetstone.learning.sequence_logprobs import get_sequence_level
from whetstone.recipe import (
    DataSettings,
    DistillationSettings,
    OfflineSettings,
    OptimizerSettings,
    PreferenceSettings,
    PretrainingSettings,
    ReinforcementSettings,
    Resolved,
    RewardModelSettings,
    SamplingSettings,
    SupervisedSettings,
)
from whetstone.seeding import derive_seed
from whetstone.trajectory import EndReason, Group, Score, Trajectory

_COMPARED = 256
"""Maximum number of demonstrations of a file that are compared with the limits of the policy before a run."""
_Item = TypeVar("_Item")
_Read = TypeVar("_Read", bound=Callable[..., Any])


class StoredEpisodes:
    """Imitation source of stored episodes from a run or a log, in a shuffled order.

    It contains the episodes that solved their task, and those whose success is unknown.

    Args:
        groups: Stored episodes by task.
        seed: Random seed of the order.
        balanced: Whether each task is sampled equally often.
    """

    def __init__(self, groups: Sequence[Group], *, seed: int, balanced: bool = False) -> None:
        episodes = [[_as_solved(t) for t in g.trajectories if t.error is not None or is_imitated(t)] for g in groups]
        tasks = episodes if balanced else [[episode] for group in episodes for episode in group]
        self._tasks = [each for each in tasks if each]
        if not self._tasks:
            raise DataError("none of its episodes solved its task, so there is nothing to imitate")
        self._order = ShuffledIndices(len(self._tasks), seed=seed)
        self._within = [
            ShuffledIndices(len(each), seed=derive_seed(seed, "within", n)) for n, each in enumerate(self._tasks)
        ]

    def iterate_episodes(self) -> Iterator[Trajectory]:
        """Yield every episode once, in the stored order."""
        return itertools.chain.from_iterable(self._tasks)

    def get_episode(self, draw: int) -> Trajectory:
        """Return the episode at a position of the shuffled order; see `ImitationSource.get_episode`."""
        place = self._order[draw]
        return self._tasks[place][self._within[place][draw // len(self._tasks)]]


def _as_solved(episode: Trajectory) -> Trajectory:
    """Mark a selected episode as solved; as failed if `train_on` selects none of its turns."""
    score = episode.score
    if score is not None and not episode.segments():
        why = f"{episode.id}  train_on selects none of its turns"
        return replace(episode, score=None, ended=EndReason.ERROR, error=why)
    return episode if score is None else replace(episode, score=replace(score, success=True))


class StoredGroups:
    """Group source of stored groups, in a shuffled order.

    Args:
        groups: Stored groups.
        seed: Random seed of the order.
        held_out: Fraction of the tasks, 0 to 1, whose groups are never sampled.
    """

    def __init__(self, groups: Sequence[Group], *, seed: int, held_out: float = 0.0) -> None:
        tasks = sorted({group.task.id for group in groups}, key=lambda task: derive_seed(seed, "held out", task))
        held_out_tasks = set(tasks[: int(held_out * len(tasks))])
        self.held_out = [group for group in groups if group.task.id in held_out_tasks]
        """Held-out groups, in the order in which they were sampled."""
        self._groups = [group for group in groups if group.task.id not in held_out_tasks]
        self._order = ShuffledIndices(len(self._groups), seed=seed)

    def iterate_episodes(self) -> Iterator[Trajectory]:
        """Yield every episode that is not held out."""
        return (trajectory for group in self._groups for trajectory in group.trajectories)

    async def groups(self, first: int, count: int, /) -> list[Group]:
        """Return groups of the shuffled order; see `GroupSource.groups`.

        Args:
            first: Position of the first group.
            count: Number of groups.
        """
        return [self._groups[self._order[position]] for position in range(first, first + count)]


def select_pairs(groups: Sequence[Group], *, singles: bool = False, steps: bool = False) -> list[Group]:
    """Return the best and the worst episode of each group, with their stored tokens.

    Args:
        groups: Stored groups.
        singles: Whether to return each episode separately, labeled positive if it solved its task; for a log, with its
            reward as value.
        steps: Whether turns that continue the same turn are compared. All episodes then keep their scores, and a task
            is used if two of its episodes continue the same turn with different results.

    Raises:
        DataError: If no task has a better and a worse episode.
    """
    pairs: list[Group] = []
    for group in groups:
        pair = best_and_worst(group)
        if steps:
            pairs += [Group(group.task, _scored(group))] if pair is not None else []
        elif singles:
            pairs += [Group(group.task, (_with_value(each, _solved(each)),)) for each in _scored(group)]
        elif pair is not None:
            pairs.append(Group(group.task, (_with_value(pair[0], 1.0), _with_value(pair[1], 0.0))))
    if not pairs:
        raise DataError("no task of it has a better and a worse episode")
    return pairs


def _scored(group: Group) -> tuple[Trajectory, ...]:
    return tuple(each for each in group.trajectories if each.score is not None)


def _solved(episode: Trajectory) -> float:
    return float(episode.solved) if episode.score is None or episode.score.success is not None else get_reward(episode)


def _with_value(trajectory: Trajectory, value: float) -> Trajectory:
    return replace(trajectory, score=Score(value, success=value > 0))


def _take_checked(read: _Read) -> _Read:
    """Decorate a reader to return, once, the data that `check_data` has read.

    The data is taken only if it was read with the same settings.
    """

    @functools.wraps(read)
    def take(assembly: RunComponents, settings: Any, *args: Any) -> Any:
        checked = assembly.checked_data.pop(read.__name__, None)
        if checked is not None and checked[0] == settings:
            return checked[1]
        return read(assembly, settings, *args)

    return cast("_Read", take)


def _read_rows(
    assembly: RunComponents, settings: DataSettings, key: str, parse: Callable[[Row], Iterable[_Item]]
) -> list[_Item]:
    """Read every row of a data file, and store the number of skipped rows in the components."""
    path = Path(settings.path)
    items, skipped = read_all(path, parse, split=settings.split, on_bad_row=settings.on_bad_row)
    if skipped and not items:
        raise DataError(f"{path}: all {skipped} rows are invalid; set `{key}.on_bad_row: stop` to see the reasons")
    count_skipped(assembly.skipped_rows, key, skipped)
    return items


@_take_checked
def read_demonstrations(assembly: RunComponents, settings: DataSettings, key: str) -> ImitationSource:
    """Read the demonstrations that `data` of an imitation stage names.

    Args:
        assembly: Components of the run.
        settings: Value of `data`.
        key: Recipe key of `data`.

    Raises:
        DataError: If a row is invalid; the message names file, line and reason.
        RecipeError: If `train_on` names no turn filter.
    """
    path, seed = Path(settings.path), assembly.resolved.recipe.seed
    if is_offline(path) or settings.filter_keys:
        try:
            return StoredEpisodes(
                assembly.stored_reader.groups(settings, key), seed=seed, balanced=settings.balance_tasks
            )
        except DataError as error:
            raise DataError(f"{path}: {error}" if str(path) not in str(error) else str(error)) from None
    chosen = lookup_component(assembly.resolved, f"{key}.train_on", "turn filter", settings.train_on, LEARNED_FROM)
    offered = assembly.offered_tools

    def parse(row: Row) -> list[tuple[int, Conversation]]:
        conversations = [read_conversation(each, offered) for each in conversation_rows(row)]
        usage.add(*conversations, chosen=chosen)
        return [(row.number, each) for each in conversations]

    usage = DataUsage()
    numbered = _read_rows(assembly, settings, key, parse)
    _report_usage(assembly, path, usage)
    if not numbered:
        raise DataError(f"{path}: no conversations in it")
    conversations = _remove_leaks(assembly, settings, key, numbered)
    conversations = [each for each in conversations if each.get_trained_turns(all_assistant_turns)]
    if not conversations:
        raise DataError(f"{usage.describe(path)[0]}; change the field that excludes them, such as `weight`")
    conversations = repeat_long(conversations, settings.length_exponent)
    return Demonstrations(
        conversations, assembly.chat, chosen=chosen, context_length=assembly.policy.context_length, seed=seed
    )


def _remove_leaks(
    assembly: RunComponents, settings: DataSettings, key: str, numbered: Sequence[tuple[int, Conversation]]
) -> list[Conversation]:
    """Return the conversations without a task of the evaluation, and report the others.

    Raises:
        DataError: If no conversation is left.
    """
    if settings.keep_evaluation_tasks:
        return [conversation for _, conversation in numbered]
    held_out = assembly.source.held_out(assembly.resolved.recipe.evaluation.episodes)
    leaks = find_leaks([[message.text for message in each.messages] for _, each in numbered], held_out)
    if leaks:
        first, task_id = next(iter(leaks.items()))
        where = f"{settings.path}: {len(leaks)} of {len(numbered)} conversations contain evaluation tasks"
        example = f"such as row {numbered[first][0]} (task {task_id})"
        if len(leaks) == len(numbered):
            raise DataError(f"{where}, {example}; evaluate on other tasks, or set {key}.keep_evaluation_tasks: true")
        assembly.say(f"{where} and are left out, {example}; {key}.keep_evaluation_tasks: true trains on them")
        assembly.leaking_rows[key] = frozenset(numbered[index][0] for index in leaks)
    return [conversation for index, (_, conversation) in enumerate(numbered) if index not in leaks]


def repeat_long(conversations: Sequence[Conversation], exponent: float) -> list[Conversation]:
    """Return conversations, those longer than the mean several times: (turns / mean turns)^exponent times, rounded.

    Turns are those of the assistant. Each conversation occurs at least once; with exponent 0 exactly once.

    Source: resampling of long traces as in DR-Venus 2026; the weight is an addition.
    """
    turns = [sum(message.role == "assistant" for message in each.messages) for each in conversations]
    mean = sum(turns) / max(1, len(turns))
    repeats = [max(1, round((count / mean) ** exponent)) if mean else 1 for count in turns]
    return [each for each, count in zip(conversations, repeats, strict=True) for _ in range(count)]


def _report_usage(assembly: RunComponents, path: Path, usage: DataUsage) -> None:
    for line in usage.describe(path):
        assembly.say(line)


@_take_checked
def read_texts(assembly: RunComponents, settings: PretrainingSettings) -> Texts:
    """Read the texts of a pretraining stage.

    The stage trains on windows of the texts, of at most the policy's context length.

    Raises:
        DataError: If a row is invalid, or there is no text.
    """
    _refuse_turns(assembly.resolved, settings.data, "pretraining.data", "all tokens of a text are trained on")
    path = Path(settings.data.path)
    usage = DataUsage("texts")

    def parse(row: Row) -> list[str]:
        text = get_text(row)
        return [] if usage.add_row(row, ("text",)) else [text]

    texts = _read_rows(assembly, settings.data, "pretraining.data", parse)
    _report_usage(assembly, path, usage)
    if not any(map(str.strip, texts)):
        raise DataError(f"{path}: no text in it")
    window = min(settings.window, assembly.policy.context_length)
    return Texts(texts, assembly.chat, window=window, seed=assembly.resolved.recipe.seed)


@_take_checked
def read_preferences(assembly: RunComponents, settings: PreferenceSettings) -> Preferences | StoredGroups:
    """Read the preference pairs, or rated single answers, of a preference stage.

    Raises:
        DataError: If a row is invalid, or there is no pair.
        RecipeError: If the file lacks the data that the objective compares.
    """
    path, resolved = Path(settings.data.path), assembly.resolved
    singles_alone = settings.objective.name == "kto"
    steps = get_sequence_level(_objective_of(resolved, settings)) == "turn"
    if _holds_episodes(settings.data):
        groups = _tasks_of(assembly, settings.data, "preference.data")
        try:
            pairs = select_pairs(groups, singles=singles_alone, steps=steps)
            return StoredGroups(pairs, seed=resolved.recipe.seed)
        except DataError as error:
            raise DataError(f"{path}: {error}") from None
    _refuse_filters(resolved, settings.data, "preference.data")
    offered = assembly.offered_tools
    preferences = _read_preference_rows(assembly, settings.data, "preference.data", offered)
    singles = sum(len(each.answers) == 1 for each in preferences)
    if not singles_alone and singles:
        problem = (
            f'"{settings.objective.name}" compares pairs, and {singles} of {len(preferences)} rows are rated singles'
        )
        raise resolved.error("preference.objective", f"{problem}; use kto for rated singles")
    room, seed = assembly.policy.context_length, resolved.recipe.seed
    return Preferences(preferences, assembly.chat, context_length=room, seed=seed, steps=steps)


def _read_preference_rows(
    assembly: RunComponents, settings: DataSettings, key: str, offered: tuple[ToolSpec, ...]
) -> list[Preference]:
    """Read the pairs and rated single answers of a file.

    Rows that a field such as `weight` excludes from training are left out.

    Raises:
        DataError: If rows are invalid, or nothing is left.
    """

    def parse(row: Row) -> list[Preference]:
        preference = read_preference(row, offered)
        usage.add(*(conversation for conversation, _ in preference.answers))
        return [preference]

    path, usage = Path(settings.path), DataUsage()
    preferences = _read_rows(assembly, settings, key, parse)
    _report_usage(assembly, path, usage)
    if not preferences:
        raise DataError(f"{path}: no pairs in it")
    trained = [preference for preference in preferences if preference.is_trained]
    if not trained:
        raise DataError(f"{usage.describe(path)[0]}; change the field that excludes them, such as `weight`")
    return trained


def _objective_of(resolved: Resolved, settings: PreferenceSettings) -> Any:
    """Return the objective of a preference stage, with its options bound."""
    return build_function(resolved, "preference.objective", settings.objective, OBJECTIVES, kind="objective")


@_take_checked
def read_offline_groups(assembly: RunComponents, settings: OfflineSettings) -> StoredGroups:
    """Read the stored episodes of an offline stage, as groups.

    Raises:
        DataError: If there are no episodes, or their tokens are of another tokenizer.
    """
    groups = _tasks_of(assembly, settings.data, "offline.data")
    return StoredGroups(groups, seed=assembly.resolved.recipe.seed, held_out=settings.held_out)


def _tasks_of(assembly: RunComponents, settings: DataSettings, key: str) -> list[Group]:
    """Read stored episodes for a stage that samples whole tasks."""
    if settings.balance_tasks:
        raise assembly.resolved.error(f"{key}.balance_tasks", "has no effect: whole tasks are sampled")
    return assembly.stored_reader.groups(settings, key)


def load_scored_episodes(assembly: RunComponents, settings: RewardModelSettings) -> list[tuple[Trajectory, ...]]:
    """Read the training data of a reward model: scored episodes, grouped by task.

    Raises:
        DataError: If a row is invalid, or there is no episode.
    """
    key = "reward_model.data"
    _refuse_turns(assembly.resolved, settings.data, key, "whole episodes are scored")
    if _holds_episodes(settings.data):
        return [group.trajectories for group in _tasks_of(assembly, settings.data, key)]
    _refuse_filters(assembly.resolved, settings.data, key)
    offered = assembly.offered_tools
    preferences = _read_preference_rows(assembly, settings.data, key, offered)
    rated: dict[tuple[Message, ...], list[Trajectory]] = defaultdict(list)  # singles of one prompt are one task
    for each in Preferences(
        preferences, assembly.chat, context_length=assembly.policy.context_length
    ).iterate_episodes():
        if each.score is not None:
            rated[each.opening].append(each)
    return [tuple(episodes) for episodes in rated.values()]


def check_data(assembly: RunComponents, resolved: Resolved, finished: Container[str] = ()) -> None:
    """Read all data of each stage before anything is evaluated or trained.

    The rows are kept in `assembly.checked_data`, and the stage takes them from there.

    Args:
        assembly: Components of the run.
        resolved: Recipe with its stages.
        finished: Stages whose data is no longer needed.

    Raises:
        DataError: If rows are invalid; the message has their number, and place and reason of the first ten.
    """
    for kind, settings in resolved.recipe.own_stages.items():
        if kind in finished:
            continue
        if isinstance(settings, SupervisedSettings) and settings.data is not None:
            _check(read_demonstrations, assembly, settings.data, f"{kind}.data")
        elif isinstance(settings, PretrainingSettings):
            _check(read_texts, assembly, settings)
        elif isinstance(settings, PreferenceSettings):
            _check(read_preferences, assembly, settings)
        elif isinstance(settings, OfflineSettings):
            _check(read_offline_groups, assembly, settings)
        elif isinstance(settings, RewardModelSettings):
            load_scored_episodes(assembly, settings)
    check_mixture(assembly)


def find_policy_limit_problems(assembly: RunComponents, resolved: Resolved) -> list[str]:
    """Return one line per limit of the policy that the data of a stage exceeds (`PolicyLimits`).

    At most 256 demonstrations per file are compared, because each must be tokenized. `check_data` must have read the
    data.
    """
    problems: list[str] = []
    for read, key in (("read_demonstrations", "supervised.data"), ("read_offline_groups", "offline.data")):
        source = assembly.checked_data.get(read, (None, None))[1]
        if isinstance(source, Demonstrations | StoredEpisodes | StoredGroups):
            limits = PolicyLimits.of_recipe(resolved.recipe).add(itertools.islice(source.iterate_episodes(), _COMPARED))
            problems += map(str, limits.find_problems(key))
    return problems


def _check(read: Callable[..., Any], assembly: RunComponents, settings: Any, *key: str) -> None:
    assembly.checked_data[read.__name__] = (settings, read(assembly, settings, *key))


def check_mixture(assembly: RunComponents) -> None:
    """Read the stored episodes that are mixed into reinforcement, if the recipe has some.

    Raises:
        DataError: If there are no episodes, they lack required log-probs, their tokens are of another tokenizer, or the
            files changed since the start of the run.
    """
    for mixed in assembly.method.sources.values():
        if isinstance(mixed.source, StoredMixture):
            mixed.source.read()


def _holds_episodes(settings: DataSettings) -> bool:
    """Return whether `data` names episodes with rewards: a run, or a log with a reward column."""
    return is_offline(Path(settings.path)) or settings.reward is not None


def _refuse_filters(resolved: Resolved, settings: DataSettings, key: str) -> None:
    """Reject keys that select stored episodes if `data` is a file of preference pairs."""
    for name in settings.filter_keys:
        problem = (
            f"has no effect: {settings.path} has no stored episodes; for a log, set `reward` to the column of rewards"
        )
        raise resolved.error(f"{key}.{name}", problem)
    _refuse_turns(resolved, settings, key, "whole answers of a pair are compared")


def _refuse_turns(resolved: Resolved, settings: DataSettings, key: str, why: str) -> None:
    """Reject keys of conversations, such as `train_on`, if the stage does not train on single turns."""
    if settings.train_on != "all":
        raise resolved.error(f"{key}.train_on", f"has no effect: {why}")
    for name in settings.conversation_keys:
        raise resolved.error(f"{key}.{name}", f"has no effect: {why}")


def as_reinforcement(resolved: Resolved) -> Resolved:
    """Return a recipe whose stage is rewritten as a `reinforcement` stage.

    The components are built from this form. A preference, offline or distillation stage becomes reinforcement on groups
    that are not sampled. A sampling stage becomes reinforcement with an objective that compares nothing. Other recipes
    are returned unchanged.
    """
    recipe = resolved.recipe
    if recipe.sampling is not None:
        set_fields = set(SamplingSettings.model_fields) & recipe.sampling.model_fields_set - {"learning_rate"}
        sampled = {name: getattr(recipe.sampling, name) for name in (*set_fields, "steps", "tasks_per_step")}
        # an objective that compares nothing: a task may have a single episode
        return resolved.with_changes({"sampling": None, "reinforcement": sampled, "objective": "supervised"})
    stage = recipe.preference or recipe.offline or recipe.distillation
    if stage is None:
        return resolved
    shared = {name: getattr(stage, name) for name in OptimizerSettings.model_fields}
    changes: dict[str, Any] = {"preference": None, "offline": None, "distillation": None}
    if isinstance(stage, DistillationSettings):
        changes |= {"objective": stage.objective.model_dump()}
        shared |= {name: getattr(stage, name) for name in DistillationSettings.model_fields if name != "objective"}
    else:
        shared |= {"reference_device": stage.reference_device, "reference_offload": stage.reference_offload}
    if isinstance(stage, PreferenceSettings):
        changes |= {"objective": stage.objective.model_dump(), "aggregation": None}
        shared["tasks_per_step"] = stage.batch_size
    elif isinstance(stage, OfflineSettings):
        smooth = stage.consistency_regularization
        shared |= {
            "tasks_per_step": stage.tasks_per_step,
            "reference_kl": stage.reference_kl,
            "consistency_regularization": smooth.model_dump() if smooth is not None else None,
        }
    stage_changes = {name: value for name, value in shared.items() if not _is_default(name, value)}
    return resolved.with_changes({**changes, "reinforcement": stage_changes})


def _is_default(name: str, value: Any) -> bool:
    """Return whether a value is the default of a `reinforcement` key.

    The result is False for the learning rate, which is always kept.
    """
    return name != "learning_rate" and bool(value == ReinforcementSettings.model_fields[name].default)
