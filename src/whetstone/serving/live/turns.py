"""What is kept of a judged answer? Its tokens, what the policy read, what it reads with the hint, and what was said.

One file an episode, so that to delete an episode is to delete a file.

Easy to get wrong: the hinted context is made where the answer was drawn, from the same tokens. Rendered later from
text it would be another.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NotRequired

import orjson

from whetstone.atomic_write import saving
from whetstone.chat import Chat, Context, Message
from whetstone.data.redacting import Redacting
from whetstone.data.stored_episodes import as_stored
from whetstone.json_lines import cut_incomplete_line, make_shape, read_objects, validate_shape
from whetstone.rollout.context_transforms.note import appended
from whetstone.serving.live.scorers import Followed, Judgement
from whetstone.serving.recording import Episode, Said, continue_after, conversation, recorded, turn_alone
from whetstone.trajectory import TRAINABLE, Author, Group, OffPolicy, Score, Task, Tokens, Trajectory
from whetstone.trajectory_json import encoded_trajectory, read_trajectory

_HINT, _HINTED = "hint", "hinted"


@dataclass(frozen=True, slots=True)
class Intervention:
    """A person who said something in the policy's place."""

    learned_as: str
    """`demonstration`: his words are imitated; `preference`: they are to be likelier than the policy's; `reward`: the
    policy's are worth −1, and his 0."""
    by: str
    at: float
    """Seconds since 1970."""
    other: Trajectory
    """The one of the two that `JudgedTurn.trajectory` is not: what the policy had said, or where that is paid, what the
    person said."""

    def told(self) -> dict[str, Any]:
        """As it is told of over HTTP."""
        (turn,) = self.other.turns
        return {
            "learned_as": self.learned_as,
            "by": self.by,
            "at": self.at,
            "other": turn.message.to_openai(),
        }


@dataclass(frozen=True, slots=True)
class JudgedTurn:
    """An answer somebody said something of."""

    number: int
    """Its place among all that were judged."""
    episode: str
    answer: int
    """Its number in the episode."""
    judgement: Judgement
    trajectory: Trajectory
    """Of this one turn, behind the whole context it was drawn in."""
    hinted: tuple[int, ...] = ()
    """[T] the context with the hint in it; empty where there is none."""
    intervention: Intervention | None = None
    """Where a person took over; then `trajectory` is what is learned from, of the two."""

    def group(self, *, reward_weight: float, intervention_weight: float = 1.0) -> Group:
        """As an update learns from it: its reward is its advantage, its task holds what the teacher reads. Where both
        answers of an intervention are learned from, it is a group of two."""
        over = self.intervention
        value = (reward_weight if over is None else intervention_weight) * self.judgement.reward
        members = [replace(self.trajectory, score=Score(value, success=self.judgement.reward > 0))]
        if over is not None and over.learned_as == "preference":
            members.append(replace(over.other, score=Score(-value, success=False)))
        elif over is not None and over.learned_as == "reward":
            members.append(replace(over.other, score=Score(0.0, success=True)))
        task = Task(self.trajectory.task_id, "", {_HINT: self.judgement.hint, _HINTED: self.hinted})
        # clients draw as they like, so what the sampler said is no probability of the policy's
        return as_stored(Group(task, tuple(members)), "", number=self.number, off_policy=OffPolicy.RECOMPUTE)

    def redacted(self, redacting: Redacting) -> JudgedTurn | None:
        """As it is kept where something is taken out before; None: nothing is left of it that can be learned from."""
        over = self.intervention
        if over is not None:
            over = replace(over, other=redacting(over.other))
        found, judgement = redacting(self.trajectory), self.judgement
        learned = [found] if over is None or over.learned_as == "demonstration" else [found, over.other]
        if not all(TRAINABLE.intersection(trajectory.turns[0].action.authors) for trajectory in learned):
            return None
        said = replace(judgement, hint=redacting.redact(judgement.hint), why=redacting.redact(judgement.why))
        return replace(self, trajectory=found, judgement=said, hinted=redacting.read(self.hinted), intervention=over)

    def told(self) -> dict[str, Any]:
        """As it is told of over HTTP."""
        (turn,) = self.trajectory.turns
        over = self.intervention
        return {
            "number": self.number,
            "episode": self.episode,
            "answer": self.answer,
            "asked": [message.to_openai() for message in self.trajectory.opening],
            "said": turn.message.to_openai(),
            "followed_by": [message.to_openai() for message in turn.observation],
            "reward": self.judgement.reward,
            "hint": self.judgement.hint,
            "why": self.judgement.why,
            "versions": sorted({version for version in turn.action.versions if version >= 0}),
            "intervention": over.told() if over is not None else None,
        }


def hint_of(task: Task, trajectory: Trajectory) -> str:
    """What would have helped, in words; empty: nothing."""
    return str(task.private[_HINT])


def hint_read(trajectory: Trajectory, task: Task) -> Trajectory:
    """The turn as a teacher reads it: behind the context with the hint, where there is one."""
    hinted = task.private.get(_HINTED)
    if not hinted:
        return trajectory
    (turn,) = trajectory.turns
    return replace(trajectory, turns=(replace(turn, context=Tokens.written(hinted, Author.ENVIRONMENT)),))


def followed_of(said: Said, following: Sequence[Message]) -> Followed:
    """An answer with the whole conversation before it."""
    return Followed(conversation(said), said.message, tuple(following))


def judged_turn(
    episode: Episode, said: Said, followed: Followed, judgement: Judgement, *, number: int, chat: Chat, room: int
) -> JudgedTurn:
    """An answer as it is kept.

    Args:
        room: Tokens the model can have in view; a hint that leaves none for the answer is left out, and `why` says so.
    """
    hinted: tuple[int, ...] = ()
    if judgement.hint:
        hinted = _with_hint(said, judgement.hint, chat).ids
        if len(hinted) + len(said.action) > room:
            hinted, judgement = (), replace(judgement, hint="", why=f"{judgement.why}; no room for its hint")
    turn = turn_alone(said, followed.following)
    name = f"{episode.task or episode.record_id}/live-{number}"
    trajectory = recorded(name, name, followed.asked, [turn])
    answer = next(place for place, each in enumerate(episode.said) if each is said)
    return JudgedTurn(number, episode.record_id, answer, judgement, trajectory, hinted)


def taken_over(episode: Episode, answer: int, learned_as: str, *, number: int) -> JudgedTurn:
    """An answer a person took over, as it is kept: the person's words with +1, or the policy's with −1.

    Args:
        answer: Of the policy; a person said something in its place.
        learned_as: See `Intervention`.
    """
    own = episode.said[answer]
    person = own.replaced
    assert person is not None
    name = f"{episode.task or episode.record_id}/live-{number}"
    asked = conversation(own)
    his, ours = (
        recorded(f"{name}{end}", name, asked, [turn_alone(said)]) for said, end in ((person, ""), (own, "~policy"))
    )
    learned, other, reward = (ours, his, -1.0) if learned_as == "reward" else (his, ours, 1.0)
    why = f"{person.by} took over: {learned_as}"
    intervention = Intervention(learned_as, person.by, person.at, other)
    return JudgedTurn(number, episode.record_id, answer, Judgement(reward, "", why), learned, (), intervention)


def _with_hint(said: Said, hint: str, chat: Chat) -> Context:
    """The context of an answer, the hint behind what was said last."""
    heard = appended(said.heard, hint)
    if said.before is None:
        return chat.open(heard, said.context.tools)
    return continue_after(said.before, heard, chat)


class TurnStore:
    """The judged turns of a run, a file an episode.

    Args:
        folder: Made where it is not there.
        mend: Whether what a kill left of a line is taken off; False where somebody may be writing to it.
    """

    def __init__(self, folder: Path, *, mend: bool = True) -> None:
        self.folder = folder
        if mend:
            with saving(folder):
                folder.mkdir(parents=True, exist_ok=True)
        self.episodes: dict[str, list[int]] = {}
        """By episode, the numbers of its turns."""
        self._of: dict[int, str] = {}
        for path in sorted(folder.glob("*.jsonl")):
            if mend:
                cut_incomplete_line(path)
            for turn in self._read(path):
                self._know(turn)

    @property
    def next(self) -> int:
        """The number of the next turn, as far as what is there tells."""
        return max(self._of, default=-1) + 1

    def __contains__(self, number: int) -> bool:
        """Whether a turn is there."""
        return number in self._of

    def episode_of(self, number: int) -> str:
        """Which episode a turn is of."""
        return self._of[number]

    def add(self, turn: JudgedTurn) -> None:
        """Keep one, on the disk when this returns.

        Raises:
            SaveError: It could not be written.
        """
        judgement = turn.judgement
        over = turn.intervention
        head = orjson.dumps({
            "number": turn.number, "episode": turn.episode, "answer": turn.answer, "reward": judgement.reward,
            "hint": judgement.hint, "why": judgement.why, "hinted": turn.hinted,
            **({"learned_as": over.learned_as, "by": over.by, "at": over.at} if over is not None else {}),
        })  # fmt: skip
        beside = b"" if over is None else b',"other":' + encoded_trajectory(over.other)
        path = self._path(turn.episode)
        with saving(path), open(path, "ab") as file:
            file.write(head[:-1] + beside + b',"trajectory":' + encoded_trajectory(turn.trajectory) + b"}\n")
            file.flush()
            os.fsync(file.fileno())
        self._know(turn)

    def turns(self, numbers: Sequence[int]) -> list[JudgedTurn]:
        """Those of these numbers, in their order."""
        found: dict[int, JudgedTurn] = {}
        for episode in dict.fromkeys(self._of[number] for number in numbers):
            found |= {turn.number: turn for turn in self._read(self._path(episode))}
        return [found[number] for number in numbers]

    def delete(self, episode: str) -> None:
        """All turns of an episode are gone, from the disk too."""
        for number in self.episodes.pop(episode, ()):
            del self._of[number]
        path = self._path(episode)
        with saving(path):
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
    judgement = Judgement(row["reward"], row["hint"], row["why"])
    trajectory = read_trajectory(row["trajectory"], {})
    over = None
    if "learned_as" in row:
        over = Intervention(row["learned_as"], row["by"], row["at"], read_trajectory(row["other"], {}))
    return JudgedTurn(row["number"], row["episode"], row["answer"], judgement, trajectory, tuple(row["hinted"]), over)
