"""Which conversation does a request go on with, and what became of it in tokens?

A client sends all that was said each time. Where its beginning is word for word what was recorded, the answer is drawn
behind the tokens that were sampled then, never behind text read back; where it is not (the client cut its history
short, summed it up, began a conversation within the conversation), a segment of its own begins.

Easy to get wrong: two clients may say the same and get the same answer. Each then goes on with one of the two, so an
answer somebody has gone on from already is taken last.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from urllib.parse import quote

from whetstone.chat import Chat, Context, Message, ToolSpec, user
from whetstone.chat.api.asked import told, words
from whetstone.trajectory import Author, EndReason, Provenance, Score, Task, Tokens, TokenSequence, Trajectory, Turn


@dataclass(slots=True, eq=False)
class Said:
    """An answer of the model, and where it stands."""

    before: Said | None
    """The answer it goes on from; None where a segment of its own begins."""
    heard: tuple[Message, ...]
    """What was said since."""
    context: Context
    action: Tokens
    message: Message
    """The action as a message, thinking included."""
    digest: str = ""
    """Of the whole conversation up to and with it, as the client knows it."""
    text: str | None = None
    """Of all its tokens, where it goes on from a prompt; None in a conversation."""
    followed: int = 0
    """How often somebody went on from it."""
    behind: str = ""
    """The digest of the conversation up to it."""
    by: str = ""
    """The person who said it in the policy's place; empty: the policy itself."""
    at: float = 0.0
    """When a person said it, in seconds since 1970; 0: the policy itself."""
    replaced: Said | None = None
    """What a person said in its place."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where the next answer of an episode is drawn."""

    before: Said | None
    heard: tuple[Message, ...]
    context: Context
    digest: str


@dataclass(slots=True, eq=False)
class Episode:
    """What one client, or one run of its agent, said and was told."""

    id: str
    task: str = ""
    owner: str = ""
    """Whose key began it."""
    problem: Task | None = None
    """Its task, where whoever began it said more than a name."""
    said: list[Said] = field(default_factory=list)
    """In the order in which they were asked for."""
    asked: float = 0.0
    """When it was last asked."""
    seed: int | None = None
    """Of its draws, as of an episode of the native loop; None: each request has its own."""
    reward: float | None = None
    turn_rewards: dict[int, float] = field(default_factory=dict)
    """By the number of the answer."""
    judged: set[int] = field(default_factory=set)
    """Numbers of answers something was made of already, by whoever learns from what follows them."""
    watched: str = ""
    """The person who looks at each answer and lets it stand or takes it over; empty: nobody does."""
    hold_seconds: float = 0.0
    """How long each answer waits for a person before it goes out."""
    unseen: set[int] = field(default_factory=set)
    """Numbers of answers for which nobody came in that time."""
    closed: bool = False

    @property
    def record_id(self) -> str:
        """Name in records: the id, after the quoted name of the key if it belongs to one; two keys can use one id."""
        return f"{quote(self.owner, safe='')}:{self.id}" if self.owner else self.id

    def place(self, chat: Chat, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Place:
        """Where an answer to these messages is drawn."""
        digests = list(_digests(messages, tools))
        before, known = self._known(digests, messages)
        heard = tuple(messages[known:])
        if before is None:
            return Place(None, tuple(messages), chat.open(messages, tools), digests[-1])
        before.followed += 1
        return Place(before, heard, continue_after(before, heard, chat), digests[-1])

    def prompted(self, chat: Chat, prompt: str | tuple[int, ...]) -> Place:
        """Where what goes on from a prompt is drawn: behind the tokens drawn before, where it begins with them."""
        before = self.prompted_before(prompt)
        if before is None:
            new = chat.encode(prompt) if isinstance(prompt, str) else prompt
            known = TokenSequence()
        else:
            before.followed += 1
            known = before.context.tokens + before.action.sequence
            new = chat.encode(prompt[len(before.text or "") :]) if isinstance(prompt, str) else prompt[len(known) :]
        heard = prompt[len(before.text or "") :] if before is not None and isinstance(prompt, str) else prompt
        text = heard if isinstance(heard, str) else str(chat.tokenizer.decode(new, skip_special_tokens=False))
        added = TokenSequence(new)
        context = Context(known + added, added, before is None, ())
        return Place(before, (user(text),), context, hashlib.sha256(_canonical(prompt)).hexdigest())

    def prompted_before(self, prompt: str | tuple[int, ...]) -> Said | None:
        """The longest of what was said that a prompt begins with, word for word."""
        best, length = None, -1
        for said in self.said:
            if said.text is None:
                continue
            whole = said.text if isinstance(prompt, str) else (said.context.tokens + said.action.sequence).keys
            if prompt[: len(whole)] != whole or len(whole) < length:
                continue
            if best is None or len(whole) > length or said.followed < best.followed:
                best, length = said, len(whole)
        return best

    def add(self, place: Place, action: Tokens, message: Message, told: Message, text: str | None = None) -> Said:
        """Keep an answer.

        Args:
            message: With its thinking.
            told: As the client is told, and will say again.
            text: See `Said.text`.
        """
        digest = _next(place.digest, told)
        said = Said(place.before, place.heard, place.context, action, message, digest, text, behind=place.digest)
        self.said.append(said)
        return said

    def take_over(self, number: int, action: Tokens, message: Message, *, by: str, at: float) -> Said:
        """A person says this in the place of an answer nobody went on from; what the policy had said is kept beside it.

        Args:
            number: Of the answer.
            action: The message in tokens, as the model would have to sample it.
            by: Who.
            at: Seconds since 1970.
        """
        own = self.said[number]
        place = Place(own.before, own.heard, own.context, own.behind)
        said = self.add(place, action, message, told(message)[1])
        said.by, said.at = by, at
        own.replaced = said
        return said

    def spans(self, place: Place) -> tuple[tuple[int, int], ...]:
        """[from, to) of what of the context was drawn; none where the template wrote history anew."""
        if place.context.opens_segment:
            return ()
        found: list[tuple[int, int]] = []
        end, new, said = len(place.context.ids), place.context.new, place.before
        while said is not None:
            end -= len(new)
            if not said.by:
                found.append((end - len(said.action), end))
            end -= len(said.action)
            if said.context.opens_segment:
                break
            new, said = said.context.new, said.before
        return tuple(reversed(found))

    def trajectory(self) -> Trajectory:
        """All of it, each sampled token once: an answer that goes on from the one before it stands behind it, any other
        begins a segment with all it was drawn behind. What a person replaced is not in it (`replaced`)."""
        children: dict[int, list[Said]] = {}
        for said in self.said:
            if said.replaced is not None and not said.followed:
                continue
            children.setdefault(id(said.before) if said.before is not None else 0, []).append(said)
        order: list[Said] = []
        waiting = list(reversed(children.get(0, [])))
        while waiting:
            order.append(waiting.pop())
            waiting += reversed(children.get(id(order[-1]), []))
        numbers = {id(said): number for number, said in enumerate(self.said)}
        turns = []
        for place, said in enumerate(order):
            apart = said.context.opens_segment or place == 0 or said.before is not order[place - 1]
            context = said.context.tokens if apart else said.context.new
            after = children.get(id(said), [])
            turns.append(
                Turn(
                    context=Tokens.written(context, Author.ENVIRONMENT),
                    action=said.action,
                    message=said.message,
                    observation=after[0].heard if after else (),
                    reward=self.turn_rewards.get(numbers[id(said)]),
                    opens_segment=apart,
                )
            )
        score = None if self.reward is None else Score(self.reward)
        opening = order[0].heard if order else ()
        marks = ("intervened",) if any(said.by for said in self.said) else ()
        task = self.task or self.record_id
        name = f"{task}/{self.record_id}"
        return recorded(name, task, opening, turns, score, marks)

    def replaced(self) -> tuple[Trajectory, ...]:
        """What the policy had said where a person took over: each answer alone behind all it was drawn behind, worth −1
        as RLIF has it (arXiv:2311.12996)."""
        found = []
        for number, said in enumerate(self.said):
            if said.replaced is None or said.followed:  # its client heard it all the same
                continue
            task, score = self.task or self.record_id, Score(-1.0, parts={"intervention": -1.0})
            name = f"{task}/{self.record_id}~{number}"
            found.append(recorded(name, task, conversation(said), [turn_alone(said)], score, ("replaced",)))
        return tuple(found)

    def _known(self, digests: Sequence[str], messages: Sequence[Message]) -> tuple[Said | None, int]:
        """The last answer the messages begin with, and how many of them that is."""
        by_digest: dict[str, Said] = {}
        for said in self.said:
            other = by_digest.get(said.digest)
            if other is None or said.followed < other.followed:
                by_digest[said.digest] = said
        for count in range(len(messages) - 1, 0, -1):
            if messages[count - 1].role == "assistant":
                return by_digest.get(digests[count]), count
        return None, 0


def continue_after(answer: Said, messages: Sequence[Message], chat: Chat) -> Context:
    """Return the context of the answer to these messages; calls that the client was not sent are text."""
    max_calls = len(answer.message.tool_calls) or (None if answer.context.tools else 0)
    return chat.extend(answer.context, answer.action.ids, messages, max_calls=max_calls)


def conversation(said: Said) -> tuple[Message, ...]:
    """All that was said before an answer."""
    asked: list[Message] = [*said.heard]
    before = said.before
    while before is not None:
        asked = [*before.heard, before.message, *asked]
        before = before.before
    return tuple(asked)


def turn_of(before: Said | None, heard: Sequence[Message]) -> int:
    """How many answers stand before one that goes on from `before` with what was heard since."""
    if before is None:  # answers of another, or of a history that was rewritten, count as well
        return sum(message.role == "assistant" for message in heard)
    return 1 + turn_of(before.before, before.heard)


def turn_alone(said: Said, following: tuple[Message, ...] = ()) -> Turn:
    """An answer by itself, behind all it was drawn behind.

    Args:
        following: What was said next.
    """
    context = Tokens.written(said.context.tokens, Author.ENVIRONMENT)
    return Turn(context=context, action=said.action, message=said.message, observation=following, opens_segment=True)


def recorded(
    id: str,
    task: str,
    opening: tuple[Message, ...],
    turns: Sequence[Turn],
    score: Score | None = None,
    marks: tuple[str, ...] = (),
) -> Trajectory:
    """Build the trajectory of a recorded conversation."""
    ended, human = EndReason.TERMINATED, Provenance.HUMAN
    return Trajectory(id, task, opening, tuple(turns), ended, score=score, marks=marks, provenance=human)


def begins_with(messages: Sequence[Message], tools: Sequence[ToolSpec]) -> str | None:
    """The digest of a conversation up to its last answer; None where there is none yet."""
    digests = list(_digests(messages, tools))
    answered = (n for n in range(len(messages), 0, -1) if messages[n - 1].role == "assistant")
    return next((digests[count] for count in answered), None)


def _digests(messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Iterator[str]:
    """Of no message, of the first, of the first two, …"""
    digest = hashlib.sha256(_canonical([tool.to_openai() for tool in tools])).hexdigest()
    yield digest
    for message in messages:
        digest = _next(digest, message)
        yield digest


def _next(digest: str, message: Message) -> str:
    return hashlib.sha256(digest.encode() + _canonical(words(message))).hexdigest()


def _canonical(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, default=str).encode()
