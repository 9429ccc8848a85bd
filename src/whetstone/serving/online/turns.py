"""Judged turns of online learning: tokens, context, hinted context, judgement; stored in one file per episode.

Deleting an episode deletes its file.

Note:
    The hinted context is built when the answer is judged, from the sampled tokens. Rendering it later from text could
    give other tokens.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NotRequired

import orjson

from whetstone.atomic_write import convert_save_errors
from whetstone.chat import Chat, Context, Message
from whetstone.data.offline_episodes import mark_offline
from whetstone.data.redacting import Redacting
from whetstone.json_lines import cut_incomplete_line, make_shape, read_objects, validate_shape
from whetstone.rollout.context_transforms.insert_text import append_to_last
from whetstone.serving.conversation_matching import (
    RecordedAnswer,
    ServerEpisode,
    build_trajectory,
    continue_after,
    list_messages_before,
    single_turn,
)
from whetstone.serving.online.scorers import Feedback, FollowUp
from whetstone.trajectory import TRAINABLE, Author, Group, OffPolicy, Score, Task, Tokens, Trajectory
from whetstone.trajectory_json import encode_trajectory, read_trajectory

_HINT, _HINTED = "hint", "hinted"


@dataclass(frozen=True, slots=True)
class Intervention:
    """Human intervention: a person's message that replaced an answer of the policy."""

    learned_as: str
    """`demonstration`: the person's message is imitated; `preference`: it is preferred to the policy's answer;
    `reward`: the policy's answer has reward −1, the person's message 0."""
    by: str
    """Name of the person."""
    at: float
    """Time in seconds since 1970."""
    other: Trajectory
    """The answer of the two that is not `JudgedTurn.trajectory`: for `reward` the person's, otherwise the policy's."""

    def to_json(self) -> dict[str, Any]:
        """Convert to a JSON object of the API."""
        (turn,) = self.other.turns
        return {
            "learned_as": self.learned_as,
            "by": self.by,
            "at": self.at,
            "other": turn.message.to_openai(),
        }


@dataclass(frozen=True, slots=True)
class JudgedTurn:
    """An answer with its feedback, as one turn to train on."""

    number: int
    """Index among all judged answers."""
    episode: str
    """Id of the episode in records."""
    answer: int
    """Number of the answer in its episode."""
    feedback: Feedback
    """Reward and hint of the answer."""
    trajectory: Trajectory
    """This single turn with its whole context."""
    hinted: tuple[int, ...] = ()
    """[T] token ids of the context with the hint; empty without a hint."""
    intervention: Intervention | None = None
    """The intervention if a person took over; `trajectory` is then the answer of the two that is trained on."""

    def build_group(self, *, reward_weight: float, intervention_weight: float = 1.0) -> Group:
        """Build the training group of the turn.

        The reward is the advantage, and the task holds the context with the hint, which the teacher reads. If both
        answers of an intervention are trained on, the group has two members.

        Args:
            reward_weight: Factor of the reward of a judged answer.
            intervention_weight: Factor of the reward of an intervention.
        """
        over = self.intervention
        value = (reward_weight if over is None else intervention_weight) * self.feedback.reward
        members = [replace(self.trajectory, score=Score(value, success=self.feedback.reward > 0))]
        if over is not None and over.learned_as == "preference":
            members.append(replace(over.other, score=Score(-value, success=False)))
        elif over is not None and over.learned_as == "reward":
            members.append(replace(over.other, score=Score(0.0, success=True)))
        task = Task(self.trajectory.task_id, "", {_HINT: self.feedback.hint, _HINTED: self.hinted})
        # clients choose sampling settings, so that the sampler's log-probs are not those of the policy
        return mark_offline(Group(task, tuple(members)), "", number=self.number, off_policy=OffPolicy.RECOMPUTE)

    def redact_turn(self, redacting: Redacting) -> JudgedTurn | None:
        """Return the turn with sensitive text removed; None if nothing trainable is left."""
        over = self.intervention
        if over is not None:
            over = replace(over, other=redacting(over.other))
        trajectory, feedback = redacting(self.trajectory), self.feedback
        trained = [trajectory] if over is None or over.learned_as == "demonstration" else [trajectory, over.other]
        if not all(TRAINABLE.intersection(trajectory.turns[0].action.authors) for trajectory in trained):
            return None
        redacted_feedback = replace(feedback, hint=redacting.redact(feedback.hint), why=redacting.redact(feedback.why))
        return replace(
            self,
            trajectory=trajectory,
            feedback=redacted_feedback,
            hinted=redacting.read(self.hinted),
            intervention=over,
        )

    def to_json(self) -> dict[str, Any]:
        """Convert to a JSON object of the API."""
        (turn,) = self.trajectory.turns
        over = self.intervention
        return {
            "number": self.number,
            "episode": self.episode,
            "answer": self.answer,
            "asked": [message.to_openai() for message in self.trajectory.opening],
            "said": turn.message.to_openai(),
            "followed_by": [message.to_openai() for message in turn.observation],
            "reward": self.feedback.reward,
            "hint": self.feedback.hint,
            "why": self.feedback.why,
            "versions": sorted({version for version in turn.action.versions if version >= 0}),
            "intervention": over.to_json() if over is not None else None,
        }


def hint_text(task: Task, trajectory: Trajectory) -> str:
    """Return the hint of a training group from its task; empty without a hint."""
    return str(task.private[_HINT])


def context_with_hint(trajectory: Trajectory, task: Task) -> Trajectory:
    """Return a trajectory whose context contains the hint, as the teacher of self-distillation reads it."""
    hinted = task.private.get(_HINTED)
    if not hinted:
        return trajectory
    (turn,) = trajectory.turns
    return replace(trajectory, turns=(replace(turn, context=Tokens.from_ids(hinted, Author.ENVIRONMENT)),))


def make_follow_up(answer: RecordedAnswer, following: Sequence[Message]) -> FollowUp:
    """Build the input of a scorer from a recorded answer and the messages that followed it."""
    return FollowUp(list_messages_before(answer), answer.message, tuple(following))


def build_judged_turn(
    episode: ServerEpisode,
    recorded_answer: RecordedAnswer,
    context: FollowUp,
    feedback: Feedback,
    *,
    number: int,
    chat: Chat,
    room: int,
) -> JudgedTurn:
    """Build the stored turn of an answer.

    Args:
        room: Context length in tokens; a hint that leaves no room for the answer is dropped, and `why` reports it.
    """
    hinted: tuple[int, ...] = ()
    if feedback.hint:
        hinted = _hinted_context(recorded_answer, feedback.hint, chat).ids
        if len(hinted) + len(recorded_answer.action) > room:
            hinted, feedback = (), replace(feedback, hint="", why=f"{feedback.why}; no room for its hint")
    turn = single_turn(recorded_answer, context.following)
    name = f"{episode.task or episode.record_id}/live-{number}"
    trajectory = build_trajectory(name, name, context.messages, [turn])
    answer = next(place for place, each in enumerate(episode.answers) if each is recorded_answer)
    return JudgedTurn(number, episode.record_id, answer, feedback, trajectory, hinted)


def intervention_turn(episode: ServerEpisode, answer: int, learned_as: str, *, number: int) -> JudgedTurn:
    """Build the stored turn of an intervention.

    It is the person's message with reward +1, or the policy's answer with −1.

    Args:
        answer: Number of the policy's answer that a person replaced.
        learned_as: See `Intervention`.
    """
    policy_answer = episode.answers[answer]
    person = policy_answer.replaced
    assert person is not None
    name = f"{episode.task or episode.record_id}/live-{number}"
    messages = list_messages_before(policy_answer)
    person_turn, policy_turn = (
        build_trajectory(f"{name}{end}", name, messages, [single_turn(recorded_answer)])
        for recorded_answer, end in ((person, ""), (policy_answer, "~policy"))
    )
    trained, other, reward = (
        (policy_turn, person_turn, -1.0) if learned_as == "reward" else (person_turn, policy_turn, 1.0)
    )
    why = f"{person.by} took over: {learned_as}"
    intervention = Intervention(learned_as, person.by, person.at, other)
    return JudgedTurn(number, episode.record_id, answer, Feedback(reward, "", why), trained, (), intervention)


def _hinted_context(answer: RecordedAnswer, hint: str, chat: Chat) -> Context:
    """Build the context of an answer with the hint inserted after the last message."""
    messages = append_to_last(answer.new_messages, hint)
    if answer.before is None:
        return chat.open(messages, answer.context.tools)
    return continue_after(answer.before, messages, chat)


class TurnStore:
    """Store of the judged turns of a live run, one file per episode, so that an episode can be deleted.

    Args:
        folder: Created if it is missing.
        mend: Whether an incomplete last line is removed; False if another process may be writing.
    """

    def __init__(self, folder: Path, *, mend: bool = True) -> None:
        self.folder = folder
        if mend:
            with convert_save_errors(folder):
                folder.mkdir(parents=True, exist_ok=True)
        self.episodes: dict[str, list[int]] = {}
        """Numbers of turns by episode."""
        self._of: dict[int, str] = {}
        for path in sorted(folder.glob("*.jsonl")):
            if mend:
                cut_incomplete_line(path)
            for turn in self._read(path):
                self._know(turn)

    @property
    def next(self) -> int:
        """Return the number of the next turn, which is greater than the number of every stored turn."""
        return max(self._of, default=-1) + 1

    def __contains__(self, number: int) -> bool:
        """Return whether a turn with this number is stored."""
        return number in self._of

    def find_episode(self, number: int) -> str:
        """Return the id of the episode that a turn belongs to."""
        return self._of[number]

    def add(self, turn: JudgedTurn) -> None:
        """Store a turn; it is on the disk when this method returns.

        Raises:
            SaveError: The turn could not be written.
        """
        feedback = turn.feedback
        over = turn.intervention
        head = orjson.dumps({
            "number": turn.number, "episode": turn.episode, "answer": turn.answer, "reward": feedback.reward,
            "hint": feedback.hint, "why": feedback.why, "hinted": turn.hinted,
            **({"learned_as": over.learned_as, "by": over.by, "at": over.at} if over is not None else {}),
        })  # fmt: skip
        other_json = b"" if over is None else b',"other":' + encode_trajectory(over.other)
        path = self._path(turn.episode)
        with convert_save_errors(path), open(path, "ab") as file:
            file.write(head[:-1] + other_json + b',"trajectory":' + encode_trajectory(turn.trajectory) + b"}\n")
            file.flush()
            os.fsync(file.fileno())
        self._know(turn)

    def get_turns(self, numbers: Sequence[int]) -> list[JudgedTurn]:
        """Load the turns with the given numbers, in the given order."""
        turns: dict[int, JudgedTurn] = {}
        for episode in dict.fromkeys(self._of[number] for number in numbers):
            turns |= {turn.number: turn for turn in self._read(self._path(episode))}
        return [turns[number] for number in numbers]

    def delete(self, episode: str) -> None:
        """Delete all turns of an episode, in memory and on the disk."""
        for number in self.episodes.pop(episode, ()):
            del self._of[number]
        path = self._path(episode)
        with convert_save_errors(path):
            path.unlink(missing_ok=True)

    def _know(self, turn: JudgedTurn) -> None:
        self.episodes.setdefault(turn.episode, []).append(turn.number)
        self._of[turn.number] = turn.episode

    def _path(self, episode: str) -> Path:
        return self.folder / f"{hashlib.sha256(episode.encode()).hexdigest()[:32]}.jsonl"

    def _read(self, path: Path) -> Iterator[JudgedTurn]:
        return read_objects(path, _turn)


_ROW = make_shape(
    number=int, episode=str, answer=int, reward=float, hint=str, why=str, hinted=list[int], trajectory=dict[str, Any],
    learned_as=NotRequired[str], by=NotRequired[str], at=NotRequired[float], other=NotRequired[dict[str, Any]],
)  # fmt: skip


def _turn(written: Mapping[str, Any]) -> JudgedTurn:
    row = validate_shape(_ROW, written)
    feedback = Feedback(row["reward"], row["hint"], row["why"])
    trajectory = read_trajectory(row["trajectory"], {})
    over = None
    if "learned_as" in row:
        over = Intervention(row["learned_as"], row["by"], row["at"], read_trajectory(row["other"], {}))
    return JudgedTurn(row["number"], row["episode"], row["answer"], feedback, trajectory, tuple(row["hinted"]), over)
