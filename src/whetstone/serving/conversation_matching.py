"""Matching of requests to recorded conversations, and the token-level record of an episode.

A client sends the whole conversation with each request. If its prefix equals a recorded conversation word for word,
generation continues from the tokens sampled before, never from re-tokenized text. Otherwise a new segment starts: the
client truncated or summarized its history, or started a nested conversation.

Note:
    Two clients may send the same messages and receive the same answer. Each then continues from one of the two answers:
    an answer that was continued already is chosen last.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from urllib.parse import quote

from whetstone.chat import Chat, Context, Message, ToolSpec, user
from whetstone.chat.api.requests import comparison_key, split_thinking
from whetstone.trajectory import Author, EndReason, Provenance, Score, Task, Tokens, TokenSequence, Trajectory, Turn


@dataclass(slots=True, eq=False)
class RecordedAnswer:
    """One answer of the model with its tokens, linked to the answer that it continues from."""

    before: RecordedAnswer | None
    """The previous answer whose tokens this answer continues from; None at the start of a segment."""
    new_messages: tuple[Message, ...]
    """Messages between `before` and this answer."""
    context: Context
    """All tokens that the model read before this answer."""
    action: Tokens
    """Sampled tokens of the answer."""
    message: Message
    """The sampled tokens as a message, including thinking."""
    digest: str = ""
    """Digest of the conversation up to and including this answer, as the client knows it."""
    text: str | None = None
    """Text of all tokens up to this answer for a text completion; None in a conversation."""
    num_continued: int = 0
    """Number of requests that continued from this answer."""
    prefix_digest: str = ""
    """Digest of the conversation before this answer."""
    by: str = ""
    """Name of the person who wrote this answer instead of the policy; empty for the policy."""
    at: float = 0.0
    """Time of the person's message in seconds since 1970; 0 for the policy."""
    replaced: RecordedAnswer | None = None
    """The person's message that replaces this answer; None if it was not replaced."""


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """Position in an episode from which the next answer is sampled."""

    before: RecordedAnswer | None
    """Answer whose tokens are the start of the context; None: a new segment starts."""
    new_messages: tuple[Message, ...]
    """Messages of the request after `before`."""
    context: Context
    """Tokens that the model reads before the answer."""
    digest: str
    """Digest of the conversation of the request."""


@dataclass(slots=True, eq=False)
class ServerEpisode:
    """One episode on the server: the requests and answers of one client, or of one run of its agent."""

    id: str
    """Id of the episode; two API keys can use the same id."""
    task: str = ""
    """Name of the task, which groups episodes."""
    owner: str = ""
    """Name of the API key that opened the episode."""
    problem: Task | None = None
    """Task of the episode, if the client sent more than a name."""
    answers: list[RecordedAnswer] = field(default_factory=list)
    """Answers in the order of their requests."""
    last_request: float = 0.0
    """Time of the last request, in seconds of the monotonic clock."""
    seed: int | None = None
    """Seed of sampling, as for an episode of the native loop; None: each request has its own seed."""
    reward: float | None = None
    """Outcome reward; None until the client sets one."""
    turn_rewards: dict[int, float] = field(default_factory=dict)
    """Rewards by number of the answer."""
    judged: set[int] = field(default_factory=set)
    """Numbers of answers that were used for training already."""
    reviewer: str = ""
    """Name of the person who reviews each answer; empty if there is none."""
    hold_seconds: float = 0.0
    """Maximum time for which each answer waits for a person before it is sent."""
    unreviewed: set[int] = field(default_factory=set)
    """Numbers of answers that no person reviewed in that time."""
    closed: bool = False
    """Whether the episode has ended."""

    @property
    def record_id(self) -> str:
        """Return the id for records, which is unique over all API keys.

        It is the id of the episode, after the quoted name of its key if there is one, since two keys can use the same
        id.
        """
        return f"{quote(self.owner, safe='')}:{self.id}" if self.owner else self.id

    def find_resume_point(self, chat: Chat, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> ResumePoint:
        """Find the recorded answer that the messages continue from, and build the context of the next answer.

        Args:
            chat: Tokenizer and chat template.
            messages: The whole conversation of the request.
            tools: Tools of the request.
        """
        digests = list(_digests(messages, tools))
        before, known = self._find_answer(digests, messages)
        new_messages = tuple(messages[known:])
        if before is None:
            return ResumePoint(None, tuple(messages), chat.open(messages, tools), digests[-1])
        before.num_continued += 1
        return ResumePoint(before, new_messages, continue_after(before, new_messages, chat), digests[-1])

    def find_prompt_resume_point(self, chat: Chat, prompt: str | tuple[int, ...]) -> ResumePoint:
        """Find the recorded text that a prompt of a text completion continues from.

        If the prompt starts with a recorded text, the context consists of the recorded tokens and the rest of the
        prompt; otherwise the whole prompt is tokenized.
        """
        before = self.find_prompt_prefix(prompt)
        if before is None:
            new = chat.encode(prompt) if isinstance(prompt, str) else prompt
            known = TokenSequence()
        else:
            before.num_continued += 1
            known = before.context.tokens + before.action.sequence
            new = chat.encode(prompt[len(before.text or "") :]) if isinstance(prompt, str) else prompt[len(known) :]
        new_text = prompt[len(before.text or "") :] if before is not None and isinstance(prompt, str) else prompt
        text = new_text if isinstance(new_text, str) else str(chat.tokenizer.decode(new, skip_special_tokens=False))
        added = TokenSequence(new)
        context = Context(known + added, added, before is None, ())
        return ResumePoint(before, (user(text),), context, hashlib.sha256(_to_bytes(prompt)).hexdigest())

    def find_prompt_prefix(self, prompt: str | tuple[int, ...]) -> RecordedAnswer | None:
        """Return the recorded answer whose text up to its end is the longest exact prefix of the prompt."""
        best, length = None, -1
        for answer in self.answers:
            if answer.text is None:
                continue
            full = answer.text if isinstance(prompt, str) else (answer.context.tokens + answer.action.sequence).keys
            if prompt[: len(full)] != full or len(full) < length:
                continue
            if best is None or len(full) > length or answer.num_continued < best.num_continued:
                best, length = answer, len(full)
        return best

    def add(
        self, place: ResumePoint, action: Tokens, message: Message, sent: Message, text: str | None = None
    ) -> RecordedAnswer:
        """Record a sampled answer at the end of the episode.

        Args:
            place: Position from which the answer was sampled.
            action: Sampled tokens.
            message: The answer with its thinking.
            sent: The answer as the client receives it, and will send it again in its next request.
            text: See `RecordedAnswer.text`.
        """
        digest = _extend_digest(place.digest, sent)
        answer = RecordedAnswer(
            place.before, place.new_messages, place.context, action, message, digest, text, prefix_digest=place.digest
        )
        self.answers.append(answer)
        return answer

    def take_over(self, number: int, action: Tokens, message: Message, *, by: str, at: float) -> RecordedAnswer:
        """Replace an answer, from which no request has continued yet, by a person's message.

        The replaced answer of the policy remains stored.

        Args:
            number: Number of the answer.
            action: The message in tokens, as the model would have to sample it.
            by: Name of the person.
            at: Seconds since 1970.
        """
        own = self.answers[number]
        place = ResumePoint(own.before, own.new_messages, own.context, own.prefix_digest)
        answer = self.add(place, action, message, split_thinking(message)[1])
        answer.by, answer.at = by, at
        own.replaced = answer
        return answer

    def sampled_spans(self, place: ResumePoint) -> tuple[tuple[int, int], ...]:
        """Return the ranges [start, end) of tokens in the context that the policy sampled earlier.

        The result is empty if the chat template rewrote the history, so that its tokens were encoded again.
        """
        if place.context.opens_segment:
            return ()
        spans: list[tuple[int, int]] = []
        end, new, answer = len(place.context.ids), place.context.new, place.before
        while answer is not None:
            end -= len(new)
            if not answer.by:
                spans.append((end - len(answer.action), end))
            end -= len(answer.action)
            if answer.context.opens_segment:
                break
            new, answer = answer.context.new, answer.before
        return tuple(reversed(spans))

    def build_trajectory(self) -> Trajectory:
        """Build the trajectory of the episode, which contains each sampled token once.

        An answer that continues from the previous one follows it; any other starts a segment with its whole context.
        Answers that a person replaced are excluded (`replaced_trajectories`).
        """
        children: dict[int, list[RecordedAnswer]] = {}
        for answer in self.answers:
            if answer.replaced is not None and not answer.num_continued:
                continue
            children.setdefault(id(answer.before) if answer.before is not None else 0, []).append(answer)
        order: list[RecordedAnswer] = []
        waiting = list(reversed(children.get(0, [])))
        while waiting:
            order.append(waiting.pop())
            waiting += reversed(children.get(id(order[-1]), []))
        numbers = {id(answer): number for number, answer in enumerate(self.answers)}
        turns = []
        for index, answer in enumerate(order):
            starts_segment = answer.context.opens_segment or index == 0 or answer.before is not order[index - 1]
            context = answer.context.tokens if starts_segment else answer.context.new
            after = children.get(id(answer), [])
            turns.append(
                Turn(
                    context=Tokens.from_ids(context, Author.ENVIRONMENT),
                    action=answer.action,
                    message=answer.message,
                    observation=after[0].new_messages if after else (),
                    reward=self.turn_rewards.get(numbers[id(answer)]),
                    opens_segment=starts_segment,
                )
            )
        score = None if self.reward is None else Score(self.reward)
        opening = order[0].new_messages if order else ()
        flags = ("intervened",) if any(answer.by for answer in self.answers) else ()
        task = self.task or self.record_id
        name = f"{task}/{self.record_id}"
        return build_trajectory(name, task, opening, turns, score, flags)

    def replaced_trajectories(self) -> tuple[Trajectory, ...]:
        """Return the answers that a person replaced, as trajectories with reward −1.

        Each has a single turn with its whole context, as in RLIF (arXiv:2311.12996).
        """
        trajectories = []
        for number, answer in enumerate(self.answers):
            if answer.replaced is None or answer.num_continued:  # its client had received it already
                continue
            task, score = self.task or self.record_id, Score(-1.0, parts={"intervention": -1.0})
            name = f"{task}/{self.record_id}~{number}"
            trajectories.append(
                build_trajectory(name, task, list_messages_before(answer), [single_turn(answer)], score, ("replaced",))
            )
        return tuple(trajectories)

    def _find_answer(self, digests: Sequence[str], messages: Sequence[Message]) -> tuple[RecordedAnswer | None, int]:
        """Return (last answer whose conversation is a prefix of the messages, number of messages in that prefix)."""
        by_digest: dict[str, RecordedAnswer] = {}
        for answer in self.answers:
            other = by_digest.get(answer.digest)
            if other is None or answer.num_continued < other.num_continued:
                by_digest[answer.digest] = answer
        for count in range(len(messages) - 1, 0, -1):
            if messages[count - 1].role == "assistant":
                return by_digest.get(digests[count]), count
        return None, 0


def continue_after(answer: RecordedAnswer, messages: Sequence[Message], chat: Chat) -> Context:
    """Build the context that continues from the tokens of an answer with new messages.

    Malformed tool calls, which the client received as text, remain text.

    Args:
        answer: The answer whose tokens are continued.
        messages: Messages after the answer.
        chat: Tokenizer and chat template.
    """
    max_calls = len(answer.message.tool_calls) or (None if answer.context.tools else 0)
    return chat.extend(answer.context, answer.action.ids, messages, max_calls=max_calls)


def list_messages_before(answer: RecordedAnswer) -> tuple[Message, ...]:
    """Return all messages of the conversation before an answer, including earlier answers."""
    messages: list[Message] = [*answer.new_messages]
    before = answer.before
    while before is not None:
        messages = [*before.new_messages, before.message, *messages]
        before = before.before
    return tuple(messages)


def count_previous_answers(before: RecordedAnswer | None, new_messages: Sequence[Message]) -> int:
    """Count the assistant messages of a conversation before its next answer.

    Args:
        before: Last recorded answer; None: no answer was recorded, and assistant messages of the client count.
        new_messages: Messages of the client after it.
    """
    if before is None:  # answers of other models or of a rewritten history count, too
        return sum(message.role == "assistant" for message in new_messages)
    return 1 + count_previous_answers(before.before, before.new_messages)


def single_turn(answer: RecordedAnswer, following: tuple[Message, ...] = ()) -> Turn:
    """Convert an answer into a turn with its whole context, independent of other turns.

    Args:
        answer: The recorded answer.
        following: Messages after the answer, which become the observation of the turn.
    """
    context = Tokens.from_ids(answer.context.tokens, Author.ENVIRONMENT)
    return Turn(
        context=context, action=answer.action, message=answer.message, observation=following, opens_segment=True
    )


def build_trajectory(
    id: str,
    task: str,
    opening: tuple[Message, ...],
    turns: Sequence[Turn],
    score: Score | None = None,
    flags: tuple[str, ...] = (),
) -> Trajectory:
    """Build the trajectory of a recorded conversation."""
    ended, human = EndReason.TERMINATED, Provenance.HUMAN
    return Trajectory(id, task, opening, tuple(turns), ended, score=score, marks=flags, provenance=human)


def conversation_digest(messages: Sequence[Message], tools: Sequence[ToolSpec]) -> str | None:
    """Return the digest of a conversation up to its last assistant message; None without such a message."""
    digests = list(_digests(messages, tools))
    answered = (n for n in range(len(messages), 0, -1) if messages[n - 1].role == "assistant")
    return next((digests[count] for count in answered), None)


def _digests(messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Iterator[str]:
    """Yield the digest of the empty conversation, of its first message, of its first two, …"""
    digest = hashlib.sha256(_to_bytes([tool.to_openai() for tool in tools])).hexdigest()
    yield digest
    for message in messages:
        digest = _extend_digest(digest, message)
        yield digest


def _extend_digest(digest: str, message: Message) -> str:
    return hashlib.sha256(digest.encode() + _to_bytes(comparison_key(message))).hexdigest()


def _to_bytes(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, default=str).encode()
