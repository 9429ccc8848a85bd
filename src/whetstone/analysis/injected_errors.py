"""Known errors in successful episodes: one action is changed, and the episode is replayed in its environment.

The turn and the kind of the error are labels for judges and step scorers. The actions after the error are those of the
source, so the observations are real and a judge cannot find the error by the length of the episode.

Note:
    A change can be harmless: another argument with the same result. An episode is labeled only if the environment
    responds differently from the error on, or if the episode is no longer solved. Solved episodes in which a call
    failed contain an error already, so they are left out.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from whetstone.chat import Message, Text, ToolCall, ToolSpec
from whetstone.environments import Environment
from whetstone.errors import DataError
from whetstone.evaluation.environment_checks import play_with_policy
from whetstone.evaluation.environment_checks.play_episode import replay_actions
from whetstone.rewards import score_trajectory
from whetstone.rewards.calls.canonical import parse_or_empty
from whetstone.rewards.protocol import Reward
from whetstone.seeding import derive_random, derive_seed
from whetstone.trajectory import Group, Task, Trajectory, Turn

NO_ERROR = "none"
"""Kind of an episode without an injected error."""
_TRIES = 8
"""Maximum number of changes of one kind that are replayed per episode."""
_TOKEN = re.compile(r"\w(?:[\w.-]*\w)?")
_COMMON = frozenset({"and", "are", "for", "has", "not", "now", "the", "was", "with", "you", "your"})
"""Words that are no values, although observations and actions contain them."""
Place = tuple[int, str] | None
"""Number of a call and name of its argument; None: the text of the message."""
ArgumentPool = Mapping[tuple[str, str], Sequence[Any]]
"""Values by tool and argument in the source episodes."""


@dataclass(frozen=True, slots=True)
class InjectedError:
    """Change of one action of an episode."""

    kind: str
    """Kind of error, one of `PROPOSALS`."""
    turn: int
    """Index of the changed turn, from 0; of a dropped turn, the index that it had."""
    actions: tuple[Message, ...]
    """All actions of the changed episode."""
    original: str
    """Call or value before the change."""
    changed: str
    """Call or value after the change; empty for a dropped call."""


@dataclass(frozen=True, slots=True)
class LabeledEpisode:
    """Replayed episode with the label of its error."""

    task: Task
    """Task of the episode."""
    source: Trajectory
    """Replay of the successful source episode."""
    episode: Trajectory
    """Replay of the changed episode, with its score; the replay of the source if there is no error."""
    error: InjectedError | None
    """The injected error; None: there is none."""

    @property
    def error_kind(self) -> str:
        """Return the kind of error, or `none`."""
        return NO_ERROR if self.error is None else self.error.kind

    @property
    def step_labels(self) -> list[int]:
        """Return 1 for each turn before the error and 0 for the error; all 1 without an error."""
        return [1] * len(self.episode.turns) if self.error is None else [1] * self.error.turn + [0]


@dataclass(slots=True)
class InjectionReport:
    """Labeled episodes, and counts of the source episodes."""

    rows: list[LabeledEpisode] = field(default_factory=list)
    """Equally many episodes of each kind, in random order."""
    solved: int = 0
    """Number of distinct solved episodes."""
    not_reproduced: int = 0
    """Number of solved episodes whose replay in the environment differs; they are not used."""
    with_failed_calls: int = 0
    """Number of solved episodes with a failed or unreadable call; they contain an error already and are not used."""
    counts: dict[str, int] = field(default_factory=dict)
    """Number of labeled episodes by kind, before each kind is cut to the smallest."""


def propose_wrong_arguments(
    episode: Trajectory, tools: Sequence[ToolSpec], pool: ArgumentPool, draw: Random
) -> Iterator[InjectedError]:
    """Yield calls with another value of one argument: a value of another episode, or a changed number."""
    for t, c, call in _list_calls(episode):
        arguments = parse_or_empty(call.arguments)
        for key, value in arguments.items():
            others = [other for other in pool.get((call.name, key), ()) if other != value]
            other = draw.choice(others) if others else _change_digit(value, draw)
            if other is not None and other != value:
                written = json.dumps({**arguments, key: other}, ensure_ascii=False)
                yield _change_call(episode, "wrong_argument", t, c, replace(call, arguments=written))


def propose_wrong_tools(
    episode: Trajectory, tools: Sequence[ToolSpec], pool: ArgumentPool, draw: Random
) -> Iterator[InjectedError]:
    """Yield calls of another tool with the same arguments; tools that accept them first."""
    for t, c, call in _list_calls(episode):
        names = parse_or_empty(call.arguments).keys()
        others = [tool for tool in tools if tool.name != call.name]
        accepting = [
            tool
            for tool in others
            if names <= {*tool.parameters.get("properties", {})} and names >= {*tool.parameters.get("required", ())}
        ]
        for tool in accepting or others:
            yield _change_call(episode, "wrong_tool", t, c, replace(call, name=tool.name))


def propose_dropped_calls(
    episode: Trajectory, tools: Sequence[ToolSpec], pool: ArgumentPool, draw: Random
) -> Iterator[InjectedError]:
    """Yield episodes without one call; a turn whose only call is dropped is dropped too, except for the last one."""
    actions = _actions(episode)
    for t, c, call in _list_calls(episode):
        calls = actions[t].tool_calls
        if len(calls) > 1:
            remaining = replace(actions[t], tool_calls=calls[:c] + calls[c + 1 :])
            yield InjectedError(
                "dropped_call", t, (*actions[:t], remaining, *actions[t + 1 :]), _describe_call(call), ""
            )
        elif t + 1 < len(actions):
            yield InjectedError("dropped_call", t, actions[:t] + actions[t + 1 :], _describe_call(call), "")


def propose_misread_results(
    episode: Trajectory, tools: Sequence[ToolSpec], pool: ArgumentPool, draw: Random
) -> Iterator[InjectedError]:
    """Yield actions in which a value that was read from an earlier observation is replaced by another one of its form.

    Only the first use of the value counts: it does not occur in the prompt or in earlier actions.
    """
    before = {token for message in episode.opening for token in _TOKEN.findall(message.text)} | _COMMON
    read: set[str] = set()
    for t, turn in enumerate(episode.turns):
        for place, text in _list_values(turn.message):
            tokens = set(_TOKEN.findall(text))
            for token in sorted((tokens & read) - before):
                others = sorted(other for other in read - tokens - _COMMON if _form(other) == _form(token))
                other = draw.choice(others) if others else _change_digit(token, draw)
                if other is not None and (len(token) > 2 or token.isdecimal()):
                    changed = re.sub(rf"(?<!\w){re.escape(token)}(?!\w)", str(other), text)
                    actions = list(_actions(episode))
                    actions[t] = _replace_value(turn.message, place, changed)
                    yield InjectedError("misread_result", t, tuple(actions), token, str(other))
        written = [turn.message.text, *(call.arguments for call in turn.message.tool_calls)]
        before |= {token for text in written for token in _TOKEN.findall(text)}
        read |= {token for message in turn.observation for token in _TOKEN.findall(message.text)}


PROPOSALS: dict[str, Callable[..., Iterator[InjectedError]]] = {
    "wrong_argument": propose_wrong_arguments,
    "wrong_tool": propose_wrong_tools,
    "dropped_call": propose_dropped_calls,
    "misread_result": propose_misread_results,
}
"""Generator of changes by kind of error."""


async def inject_errors(
    groups: Sequence[Group],
    make: Callable[[], Environment],
    reward: Reward,
    tools: Sequence[ToolSpec],
    *,
    kinds: Sequence[str] = tuple(PROPOSALS),
    seed: int = 0,
    run_seed: int = 0,
    max_per_kind: int = 100,
) -> InjectionReport:
    """Insert known errors into the solved episodes of groups, and replay them.

    Args:
        groups: Groups with scores; they are not changed.
        make: Function that creates the environment.
        reward: Reward that determines whether a replay is solved.
        tools: Tools of the environment.
        kinds: Kinds of errors.
        seed: Determines the errors and the order of the rows.
        run_seed: Seed of the run, from which the environments' seeds are derived.
        max_per_kind: Maximum number of rows per kind.

    Raises:
        DataError: If there is no solved episode, or none with an error.

    Source: AEGIS 2025, arXiv:2509.14295, in which a model changes actions of multi-agent systems; here rules do, and
    the environment confirms each change.
    """
    solved = {(g.task.id, str(_actions(t))): (g, t) for g in groups for t in g.trajectories if t.solved}
    if not solved:
        raise DataError("no episode is solved; train longer, or choose another run")
    sources = list(solved.values())
    derive_random(seed, "injected errors", "order").shuffle(sources)
    pool = _collect_arguments([trajectory for _, trajectory in sources])
    rows: dict[str, list[LabeledEpisode]] = {kind: [] for kind in (NO_ERROR, *kinds)}
    report = InjectionReport(solved=len(sources))

    async def play(group: Group, number: int, actions: Sequence[Message]) -> Trajectory:
        played = await play_with_policy(make, group.task, replay_actions(actions), seed=number, max_turns=len(actions))
        return await score_trajectory(reward, played.trajectory, group.task)

    for group, trajectory in sources:
        if all(len(each) >= max_per_kind for each in rows.values()):
            break
        environment_seed = _environment_seed(run_seed, group, trajectory)
        source = await play(group, environment_seed, _actions(trajectory))
        source = replace(source, id=trajectory.id)
        if not source.solved or _responses(source.turns) != _responses(_steps(trajectory)):
            report.not_reproduced += 1
            continue
        if any(record.outcome != "ok" for record in source.calls):
            report.with_failed_calls += 1
            continue
        rows[NO_ERROR].append(LabeledEpisode(group.task, source, source, None))
        for kind in kinds:
            draw = derive_random(seed, "injected errors", trajectory.id, kind)
            proposed = list(PROPOSALS[kind](source, tools, pool, draw))
            draw.shuffle(proposed)
            for error in proposed[:_TRIES] if len(rows[kind]) < max_per_kind else ():
                episode = replace(await play(group, environment_seed, error.actions), id=f"{trajectory.id}#{kind}")
                if is_different(source, episode, error):
                    rows[kind].append(LabeledEpisode(group.task, source, episode, error))
                    break
    report.counts = {kind: len(each) for kind, each in rows.items()}
    count = min((count for kind, count in report.counts.items() if count and kind != NO_ERROR), default=0)
    if not count:
        raise DataError(
            f"no error could be inserted: of {report.solved} solved episodes {report.not_reproduced} cannot be "
            f"replayed, and {report.with_failed_calls} have a failed call"
        )
    report.rows = [row for each in rows.values() for row in each[: min(count, max_per_kind)]]
    derive_random(seed, "injected errors", "rows").shuffle(report.rows)
    return report


def is_different(source: Trajectory, episode: Trajectory, error: InjectedError) -> bool:
    """Return whether the environment responds differently from an error on, or the episode is no longer solved.

    A dropped call is left out of the comparison.
    """
    before = _responses(source.turns)[error.turn :]
    if error.kind == "dropped_call":
        if len(error.actions) < len(source.turns):
            before = before[1:]
        else:
            remaining = error.actions[error.turn].tool_calls
            calls = source.turns[error.turn].message.tool_calls
            dropped = next((k for k, call in enumerate(remaining) if call != calls[k]), len(remaining))
            before[0] = [response for k, response in enumerate(before[0]) if k != dropped]
    return before != _responses(episode.turns)[error.turn :] or episode.solved != source.solved


def _responses(turns: Sequence[Turn]) -> list[list[Any]]:
    """Return outcome and text of each response per turn: of its calls, then of other messages."""
    responses: list[list[Any]] = []
    for turn in turns:
        outcomes = [record.outcome for record in turn.calls]
        texts = [message.text for message in turn.observation]
        outcomes += [""] * (len(texts) - len(outcomes))
        responses.append(list(zip(outcomes, texts, strict=False)))
    return responses


def _environment_seed(run_seed: int, group: Group, trajectory: Trajectory) -> int:
    """Return the seed with which the environment of an episode was reset in reinforcement, unless it was forked."""
    index = trajectory.id.rpartition("#")[2]
    plan = derive_seed(run_seed, "rollout", group.number)
    return derive_seed(derive_seed(plan, group.task.id, int(index) if index.isdecimal() else 0), "environment")


def _steps(episode: Trajectory) -> list[Turn]:
    return [turn for turn in episode.turns if not turn.aside]


def _actions(episode: Trajectory) -> tuple[Message, ...]:
    return tuple(turn.message for turn in _steps(episode))


def _list_calls(episode: Trajectory) -> Iterator[tuple[int, int, ToolCall]]:
    for t, action in enumerate(_actions(episode)):
        yield from ((t, c, call) for c, call in enumerate(action.tool_calls))


def _list_values(message: Message) -> Iterator[tuple[Place, str]]:
    """Yield the texts and numbers that an action contains: values of arguments, or the text of a message."""
    if not message.tool_calls:
        yield None, message.text
    for c, call in enumerate(message.tool_calls):
        for key, value in parse_or_empty(call.arguments).items():
            if isinstance(value, str | int | float) and not isinstance(value, bool):
                yield (c, key), str(value)


def _replace_value(message: Message, place: Place, text: str) -> Message:
    """Return an action with another text at a place; a number stays a number."""
    if place is None:
        return replace(message, content=(Text(text),))
    calls, (c, key) = list(message.tool_calls), place
    arguments = parse_or_empty(calls[c].arguments)
    value = text if isinstance(arguments[key], str) else type(arguments[key])(text)
    calls[c] = replace(calls[c], arguments=json.dumps({**arguments, key: value}, ensure_ascii=False))
    return replace(message, tool_calls=tuple(calls))


def _change_call(episode: Trajectory, kind: str, t: int, c: int, call: ToolCall) -> InjectedError:
    actions = list(_actions(episode))
    calls = list(actions[t].tool_calls)
    original, calls[c] = calls[c], call
    actions[t] = replace(actions[t], tool_calls=tuple(calls))
    return InjectedError(kind, t, tuple(actions), _describe_call(original), _describe_call(call))


def _describe_call(call: ToolCall) -> str:
    return f"{call.name} {call.arguments}"


def _collect_arguments(episodes: Sequence[Trajectory]) -> ArgumentPool:
    pool: dict[tuple[str, str], dict[str, Any]] = defaultdict(dict)
    for episode in episodes:
        for _, _, call in _list_calls(episode):
            for key, value in parse_or_empty(call.arguments).items():
                pool[call.name, key][json.dumps(value, sort_keys=True)] = value
    return {name: [values[written] for written in sorted(values)] for name, values in pool.items()}


def _form(token: str) -> str:
    """Return the form of a token: letters as `a`, digits as `0`."""
    return re.sub(r"\d+", "0", re.sub(r"[^\W\d]+", "a", token))


def _change_digit(value: Any, draw: Random) -> Any:
    """Return a boolean inverted, a number increased, or a text with one other digit; None if there is no digit."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + draw.randint(1, 9)
    places = [k for k, letter in enumerate(value) if letter.isdecimal()] if isinstance(value, str) else []
    if not places:
        return None
    k = draw.choice(places)
    return value[:k] + str((int(value[k]) + draw.randint(1, 9)) % 10) + value[k + 1 :]
