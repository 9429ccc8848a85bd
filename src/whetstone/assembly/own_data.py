"""Data of the stages of a recipe, read and checked as a whole before anything is trained.

Note:
    An error in the last line of a file must be found before the first step.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar, cast

from whetstone.algorithms import OBJECTIVES
from whetstone.assembly.assembly import Assembly
from whetstone.assembly.instantiate import found, function_of
from whetstone.assembly.stored_data import count_skipped
from whetstone.chat import Message, ToolSpec
from whetstone.data import (
    Conversation,
    Demonstrations,
    Preference,
    Preferences,
    Shuffled,
    StoredMixture,
    Texts,
    conversation_of,
    conversation_rows,
    preference_of,
    text_of,
)
from whetstone.data.choosing import is_imitated, reward_of
from whetstone.data.conversations import LEARNED_FROM, DataUsage, everything
from whetstone.data.demonstrations import Drawn
from whetstone.data.rows import Row, read_all
from whetstone.data.stored_episodes import best_and_worst, is_stored
from whetstone.environments.protocol import tools_shown
from whetstone.errors import DataError
from whetstone.learning.sequence_logprobs import sums_level
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

_Item = TypeVar("_Item")
_Read = TypeVar("_Read", bound=Callable[..., Any])


class StoredEpisodes:
    """Episodes of a run, or of a log, as demonstrations, in a shuffled order: those that solved their task, and those
    of which nobody says whether they did.

    Args:
        balanced: Whether each task is drawn as often as any other.
    """

    def __init__(self, groups: Sequence[Group], *, seed: int, balanced: bool = False) -> None:
        kept = [[_shown(t) for t in g.trajectories if t.error is not None or is_imitated(t)] for g in groups]
        tasks = kept if balanced else [[episode] for group in kept for episode in group]
        self._tasks = [each for each in tasks if each]
        if not self._tasks:
            raise DataError("none of its episodes solved its task, so there is nothing to imitate")
        self._order = Shuffled(len(self._tasks), seed=seed)
        self._within = [Shuffled(len(each), seed=derive_seed(seed, "within", n)) for n, each in enumerate(self._tasks)]

    def episode(self, draw: int) -> Trajectory:
        """See `Drawn`."""
        place = self._order[draw]
        return self._tasks[place][self._within[place][draw // len(self._tasks)]]


def _shown(episode: Trajectory) -> Trajectory:
    """What is chosen from a log is what is to be imitated, whether or not somebody says that it solved anything."""
    score = episode.score
    if score is not None and not episode.segments():
        why = f"{episode.id}  train_on selects none of its turns"
        return replace(episode, score=None, ended=EndReason.ERROR, error=why)
    return episode if score is None else replace(episode, score=replace(score, success=True))


class StoredGroups:
    """Groups of a run, in a shuffled order.

    Args:
        held_out: The share of tasks whose groups are never drawn.
    """

    def __init__(self, groups: Sequence[Group], *, seed: int, held_out: float = 0.0) -> None:
        tasks = sorted({group.task.id for group in groups}, key=lambda task: derive_seed(seed, "held out", task))
        apart = set(tasks[: int(held_out * len(tasks))])
        self.held_out = [group for group in groups if group.task.id in apart]
        """In the order in which they were sampled."""
        self._groups = [group for group in groups if group.task.id not in apart]
        self._order = Shuffled(len(self._groups), seed=seed)

    def group(self, draw: int) -> Group:
        """The group of the n-th draw."""
        group = self._groups[self._order[draw]]
        return Group(group.task, group.trajectories, draw)


def pairs_of(groups: Sequence[Group], *, singles: bool = False, steps: bool = False) -> list[Group]:
    """Of each group the best and the worst episode, token for token.

    Args:
        singles: Whether each episode stands for itself instead, good where it solved its task; of a log, worth what it
            was paid.
        steps: Whether turns are compared with those that went on from the same one; then all episodes stay, with what
            they are worth, and a task is taken where two of them do so and came to something else.

    Raises:
        DataError: No task has a better and a worse one.
    """
    found: list[Group] = []
    for group in groups:
        pair = best_and_worst(group)
        if steps:
            found += [Group(group.task, _scored(group))] if pair is not None else []
        elif singles:
            found += [Group(group.task, (_worth(each, _solved(each)),)) for each in _scored(group)]
        elif pair is not None:
            found.append(Group(group.task, (_worth(pair[0], 1.0), _worth(pair[1], 0.0))))
    if not found:
        raise DataError("no task of it has a better and a worse episode")
    return found


def _scored(group: Group) -> tuple[Trajectory, ...]:
    return tuple(each for each in group.trajectories if each.score is not None)


def _solved(episode: Trajectory) -> float:
    return float(episode.solved) if episode.score is None or episode.score.success is not None else reward_of(episode)


def _worth(trajectory: Trajectory, value: float) -> Trajectory:
    return replace(trajectory, score=Score(value, success=value > 0))


def _take_checked(read: _Read) -> _Read:
    """Make a reader return the data that `check_data` read with the same settings, once."""

    @functools.wraps(read)
    def take(assembly: Assembly, settings: Any, *args: Any) -> Any:
        checked = assembly.checked_data.pop(read.__name__, None)
        if checked is not None and checked[0] == settings:
            return checked[1]
        return read(assembly, settings, *args)

    return cast("_Read", take)


def _read_rows(
    assembly: Assembly, settings: DataSettings, key: str, parse: Callable[[Row], Iterable[_Item]]
) -> list[_Item]:
    """Read every row of a data file, and store the number of skipped rows in the assembly."""
    path = Path(settings.path)
    items, skipped = read_all(path, parse, split=settings.split, on_bad_row=settings.on_bad_row)
    if skipped and not items:
        raise DataError(f"{path}: all {skipped} rows are invalid; set `{key}.on_bad_row: stop` to see the reasons")
    count_skipped(assembly.skipped_rows, key, skipped)
    return items


@_take_checked
def demonstrations_of(assembly: Assembly, settings: DataSettings, key: str) -> Drawn:
    """What `data` of a stage that imitates holds.

    Raises:
        DataError: A row is wrong; the message has file, line and reason.
        RecipeError: `train_on` names nothing.
    """
    path, seed = Path(settings.path), assembly.resolved.recipe.seed
    if is_stored(path) or settings.chooses:
        try:
            return StoredEpisodes(
                assembly.stored_reader.groups(settings, key), seed=seed, balanced=settings.balance_tasks
            )
        except DataError as error:
            raise DataError(f"{path}: {error}" if str(path) not in str(error) else str(error)) from None
    chosen = found(assembly.resolved, f"{key}.train_on", "turn filter", settings.train_on, LEARNED_FROM)
    offered = tuple(tools_shown(assembly.environment()))

    def parse(row: Row) -> list[Conversation]:
        conversations = [conversation_of(each, offered) for each in conversation_rows(row)]
        usage.add(*conversations, chosen=chosen)
        return conversations

    usage = DataUsage()
    conversations = _read_rows(assembly, settings, key, parse)
    _report_usage(assembly, path, usage)
    if not conversations:
        raise DataError(f"{path}: no conversations in it")
    conversations = [each for each in conversations if each.learned(everything)]
    if not conversations:
        raise DataError(f"{usage.describe(path)[0]}; change its marks")
    return Demonstrations(
        conversations, assembly.chat, chosen=chosen, context_length=assembly.policy.context_length, seed=seed
    )


def _report_usage(assembly: Assembly, path: Path, usage: DataUsage) -> None:
    for line in usage.describe(path):
        assembly.say(line)


@_take_checked
def texts_of(assembly: Assembly, settings: PretrainingSettings) -> Texts:
    """The texts of pretraining.

    Raises:
        DataError: A row is wrong, or there is no text.
    """
    _refuse_turns(assembly.resolved, settings.data, "pretraining.data", "every token of a text is learned from")
    path = Path(settings.data.path)
    usage = DataUsage("texts")

    def parse(row: Row) -> list[str]:
        text = text_of(row)
        return [] if usage.add_row(row, ("text",)) else [text]

    texts = _read_rows(assembly, settings.data, "pretraining.data", parse)
    _report_usage(assembly, path, usage)
    if not any(map(str.strip, texts)):
        raise DataError(f"{path}: no text in it")
    window = min(settings.window, assembly.policy.context_length)
    return Texts(texts, assembly.chat, window=window, seed=assembly.resolved.recipe.seed)


@_take_checked
def preferences_of(assembly: Assembly, settings: PreferenceSettings) -> Preferences | StoredGroups:
    """The pairs, or rated singles, of a preference stage.

    Raises:
        DataError: A row is wrong, or there is none.
        RecipeError: The objective compares what the file does not have.
    """
    path, resolved = Path(settings.data.path), assembly.resolved
    singles_alone = settings.objective.name == "kto"
    steps = sums_level(_objective_of(resolved, settings)) == "turn"
    if _holds_episodes(settings.data):
        groups = _tasks_of(assembly, settings.data, "preference.data")
        try:
            pairs = pairs_of(groups, singles=singles_alone, steps=steps)
            return StoredGroups(pairs, seed=resolved.recipe.seed)
        except DataError as error:
            raise DataError(f"{path}: {error}") from None
    _refuse_filters(resolved, settings.data, "preference.data")
    offered = tuple(tools_shown(assembly.environment()))
    given = _read_preferences(assembly, settings.data, "preference.data", offered)
    singles = sum(len(each.answers) == 1 for each in given)
    if not singles_alone and singles:
        said = f'"{settings.objective.name}" compares pairs, and {singles} of {len(given)} rows are rated singles'
        raise resolved.error("preference.objective", f"{said}, which are for kto")
    room, seed = assembly.policy.context_length, resolved.recipe.seed
    return Preferences(given, assembly.chat, context_length=room, seed=seed, steps=steps)


def _read_preferences(
    assembly: Assembly, settings: DataSettings, key: str, offered: tuple[ToolSpec, ...]
) -> list[Preference]:
    """Read the pairs and rated singles of a file that marks do not exclude.

    Raises:
        DataError: Rows are invalid, or nothing is left.
    """

    def parse(row: Row) -> list[Preference]:
        preference = preference_of(row, offered)
        usage.add(*(conversation for conversation, _ in preference.answers))
        return [preference]

    path, usage = Path(settings.path), DataUsage()
    preferences = _read_rows(assembly, settings, key, parse)
    _report_usage(assembly, path, usage)
    if not preferences:
        raise DataError(f"{path}: no pairs in it")
    trained = [preference for preference in preferences if preference.is_trained]
    if not trained:
        raise DataError(f"{usage.describe(path)[0]}; change its marks")
    return trained


def _objective_of(resolved: Resolved, settings: PreferenceSettings) -> Any:
    return function_of(resolved, "preference.objective", settings.objective, OBJECTIVES, kind="objective")


@_take_checked
def stored_of(assembly: Assembly, settings: OfflineSettings) -> StoredGroups:
    """The stored episodes of an offline stage.

    Raises:
        DataError: There are none, or they are of another tokenizer.
    """
    groups = _tasks_of(assembly, settings.data, "offline.data")
    return StoredGroups(groups, seed=assembly.resolved.recipe.seed, held_out=settings.held_out)


def _tasks_of(assembly: Assembly, settings: DataSettings, key: str) -> list[Group]:
    """Stored episodes for who draws whole tasks."""
    if settings.balance_tasks:
        raise assembly.resolved.error(f"{key}.balance_tasks", "has no effect: whole tasks are sampled")
    return assembly.stored_reader.groups(settings, key)


def scored_episodes(assembly: Assembly, settings: RewardModelSettings) -> list[tuple[Trajectory, ...]]:
    """What a scorer learns from, task by task: episodes with what they are worth.

    Raises:
        DataError: A row is wrong, or there is none.
    """
    key = "reward_model.data"
    _refuse_turns(assembly.resolved, settings.data, key, "an episode is scored whole")
    if _holds_episodes(settings.data):
        return [group.trajectories for group in _tasks_of(assembly, settings.data, key)]
    _refuse_filters(assembly.resolved, settings.data, key)
    offered = tuple(tools_shown(assembly.environment()))
    given = _read_preferences(assembly, settings.data, key, offered)
    rated: dict[tuple[Message, ...], list[Trajectory]] = defaultdict(list)  # singles of one prompt are one task
    for each in Preferences(given, assembly.chat, context_length=assembly.policy.context_length).all():
        if each.score is not None:
            rated[each.opening].append(each)
    return [tuple(episodes) for episodes in rated.values()]


def check_data(assembly: Assembly, resolved: Resolved, finished: Container[str] = ()) -> None:
    """Read the whole data of each stage before anything is evaluated or trained; the stage uses these rows.

    Args:
        assembly: The components of the run.
        resolved: The recipe with its stages.
        finished: Stages whose data is not needed any more.

    Raises:
        DataError: Rows are invalid; the message has their number, and place and reason of the first ten.
    """
    for kind, settings in resolved.recipe.own_stages.items():
        if kind in finished:
            continue
        if isinstance(settings, SupervisedSettings) and settings.data is not None:
            _check(demonstrations_of, assembly, settings.data, f"{kind}.data")
        elif isinstance(settings, PretrainingSettings):
            _check(texts_of, assembly, settings)
        elif isinstance(settings, PreferenceSettings):
            _check(preferences_of, assembly, settings)
        elif isinstance(settings, OfflineSettings):
            _check(stored_of, assembly, settings)
        elif isinstance(settings, RewardModelSettings):
            scored_episodes(assembly, settings)
    check_mixture(assembly)


def _check(read: Callable[..., Any], assembly: Assembly, settings: Any, *key: str) -> None:
    assembly.checked_data[read.__name__] = (settings, read(assembly, settings, *key))


def check_mixture(assembly: Assembly) -> None:
    """Read the stored episodes that come beside those of reinforcement, where there are to be some.

    Raises:
        DataError: There are none, they are of another tokenizer, or not those the run began with.
    """
    for mixed in assembly.method.sources.values():
        if isinstance(mixed.source, StoredMixture):
            mixed.source.read()


def _holds_episodes(settings: DataSettings) -> bool:
    """Whether it names episodes with rewards, of a run or, where it says which column has them, of another tool."""
    return is_stored(Path(settings.path)) or settings.reward is not None


def _refuse_filters(resolved: Resolved, settings: DataSettings, key: str) -> None:
    for name in settings.chooses:
        said = f"has no effect: {settings.path} holds no stored episodes; of a log, `reward` names the column"
        raise resolved.error(f"{key}.{name}", said)
    _refuse_turns(resolved, settings, key, "both answers of a pair are compared whole")


def _refuse_turns(resolved: Resolved, settings: DataSettings, key: str, why: str) -> None:
    if settings.train_on != "all":
        raise resolved.error(f"{key}.train_on", f"has no effect: {why}")


def with_learning(resolved: Resolved) -> Resolved:
    """A recipe as its parts are made: a stage on stored data learns as reinforcement does, from groups nobody
    samples; one that only samples does so as reinforcement."""
    recipe = resolved.recipe
    if recipe.sampling is not None:
        kept = set(SamplingSettings.model_fields) & recipe.sampling.model_fields_set - {"learning_rate"}
        sampled = {name: getattr(recipe.sampling, name) for name in (*kept, "steps", "tasks_per_step")}
        # an objective that compares nothing: an episode of a task may be alone
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
    made = {name: value for name, value in shared.items() if not _is_default(name, value)}
    return resolved.with_changes({**changes, "reinforcement": made})


def _is_default(name: str, value: Any) -> bool:
    return name != "learning_rate" and bool(value == ReinforcementSettings.model_fields[name].default)
