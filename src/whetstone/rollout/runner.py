"""One episode, from reset to end.

    observe → act → read the action → step the environment → observe …

Whatever happens, a trajectory comes back that says how it ended: an exception, a hang or a limit is data.

Easy to get wrong: when something fails in the middle of a turn, the tokens sampled in it were still
sampled. The turn is kept, without an observation.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace

from whetstone.chat import Chat, Context, Message, ToolSpec
from whetstone.environments.protocol import Environment
from whetstone.errors import InfrastructureError, PromptTooLong
from whetstone.rollout.protocol import Actor, EpisodeRecord, Moment
from whetstone.seeding import derive_seed
from whetstone.trajectory import Author, EndReason, Task, Tokens, Trajectory, Turn


@dataclass(frozen=True, slots=True)
class Limits:
    """What an episode may use."""

    max_turns: int
    context_length: int
    """Tokens the model can have in view."""
    timeout_seconds: float
    """From reset to end, waiting included."""
    turn_timeout_seconds: float | None = None
    """One action and the environment's answer to it, waiting included; None: as long as the episode may take."""


@dataclass(frozen=True, slots=True)
class Fork:
    """Where an episode parts from another."""

    turns: tuple[Turn, ...]
    """What they share: the same objects in both."""
    world: int
    """The seed of the other's environment."""


async def run_episode(
    task: Task,
    *,
    environment: Environment,
    actor: Actor,
    chat: Chat,
    limits: Limits,
    id: str,
    seed: int,
    record: EpisodeRecord | None = None,
    fork: Fork | None = None,
    greedy: bool = False,
) -> Trajectory:
    """Play one episode and close its environment. Never raises for what happens inside.

    Args:
        id: Names the trajectory; the engine keeps what it computed under this name until the end.
        seed: Decides every random choice of the episode.
        record: Told of each turn; where it holds turns of this episode, the episode goes on behind them.
        fork: The turns it begins with, of another episode in the same world; None begins anew.
        greedy: Whether the actor leaves nothing to chance.

    Raises:
        PromptTooLong: The opening leaves no room for an answer: no sampling could help, so the task is at fault.
        asyncio.CancelledError: The caller gave up; the environment is closed all the same.
    """
    episode = _Episode(task, environment, actor, chat, limits, id, seed, record, fork, greedy)
    started = time.perf_counter()
    error: str | None = None
    try:
        async with asyncio.timeout(limits.timeout_seconds):
            ended = await episode.play()
    except TimeoutError as failure:
        # the environment may raise a TimeoutError of its own; the deadline's has no text
        in_time = time.perf_counter() - started < limits.timeout_seconds
        ended = EndReason.ERROR if in_time else EndReason.TIMEOUT
        error = f"TimeoutError: {failure}" if in_time else f"not over after {limits.timeout_seconds:g} s"
    except PromptTooLong:
        raise
    except _TurnTooLong as failure:
        ended, error = EndReason.TIMEOUT, str(failure)
    except InfrastructureError as failure:
        ended, error = EndReason.INFRASTRUCTURE, str(failure)
    except Exception as failure:  # the episode boundary: whatever a plug-in raises ends this episode alone
        ended, error = EndReason.ERROR, f"{type(failure).__name__}: {failure}"
    finally:
        actor.leave(id)
        await _closed(environment)
    seconds = time.perf_counter() - started
    closing = episode.closing if ended.cut_short else None
    return Trajectory(
        id, task.id, episode.opening, tuple(episode.turns), ended, error, seconds=seconds, closing=closing
    )


class _TurnTooLong(Exception):
    """A turn took longer than it may."""


class _Episode:
    """What has happened so far; turns stay readable when `play` is cut off."""

    def __init__(
        self,
        task: Task,
        environment: Environment,
        actor: Actor,
        chat: Chat,
        limits: Limits,
        id: str,
        seed: int,
        record: EpisodeRecord | None,
        fork: Fork | None,
        greedy: bool,
    ) -> None:
        self.task, self.environment, self.actor, self.chat = task, environment, actor, chat
        self.limits, self.id, self.seed, self.record = limits, id, seed, record
        self.fork, self.greedy = fork, greedy
        self.world = fork.world if fork is not None else derive_seed(seed, "environment")
        self.opening: tuple[Message, ...] = ()
        self.turns: list[Turn] = []
        self.closing: Tokens | None = None
        """What the model would read next, once an answer of the environment stands behind the last action."""

    async def play(self) -> EndReason:
        """Turn after turn until something ends the episode."""
        first = await self.environment.reset(self.task, seed=self.world)
        self.opening, tools = first.messages, first.tools
        conversation = list(first.messages)
        context = self.chat.open(first.messages, tools)
        if len(context.ids) >= self.limits.context_length:
            raise PromptTooLong(
                f"task {self.task.id}: its prompt is {len(context.ids)} tokens, the context "
                f"{self.limits.context_length}; shorten the prompt or use a model with a longer context"
            )
        for played in await self._played_before(context):
            self.turns.append(played)
            conversation += [played.message, *played.observation]
            context = self.chat.extend(context, played.action.ids, played.observation)
        while True:
            async with self._turn_deadline():
                turn = await self._act(context, conversation, tools)
                if turn is None:
                    return EndReason.MAX_TOKENS
                began = time.perf_counter()
                result = await self.environment.step(turn.message)
            turn = self.turns[-1] = replace(
                turn,
                observation=result.observation.messages,
                reward=result.reward,
                calls=result.calls,
                environment_seconds=time.perf_counter() - began,
            )
            if result.ended is not None and not result.ended.cut_short:
                return result.ended
            conversation += [turn.message, *result.observation.messages]
            context = self.chat.extend(context, turn.action.ids, result.observation.messages)
            if not context.opens_segment:
                self.closing = Tokens.written(context.new, Author.ENVIRONMENT)
            if result.ended is not None:
                return result.ended
            if len(self.turns) >= self.limits.max_turns:
                return EndReason.MAX_TURNS
            if len(context.ids) >= self.limits.context_length:
                return EndReason.CONTEXT_FULL
            if self.record is not None:
                self.record.add(self.id, turn)

    @contextlib.asynccontextmanager
    async def _turn_deadline(self) -> AsyncIterator[None]:
        number, seconds = len(self.turns) + 1, self.limits.turn_timeout_seconds
        try:
            async with asyncio.timeout(seconds) as deadline:
                yield
        except TimeoutError:  # unless the environment raised one of its own
            if deadline.expired():
                raise _TurnTooLong(f"turn {number} not over after {seconds:g} s") from None
            raise

    async def _played_before(self, opening: Context) -> tuple[Turn, ...]:
        """The turns it shares with another episode and those a record holds of it, with the environment behind them.

        An environment whose answers depend on the action alone is there already. Any other is led through the same
        actions again; where it does not answer as it did, the record is of no use, and a fork begins anew.
        """
        shared = self.fork.turns if self.fork is not None else ()
        played = (*shared, *(self.record.played(self.id) if self.record is not None else ()))
        if not played:
            return ()
        same = played[0].context.ids == tuple(opening.new)
        if same and not getattr(self.environment, "stateless", False):
            for turn in played:
                answer = await self.environment.step(turn.message)
                if answer.ended is not None or answer.observation.messages != turn.observation:
                    same = False
                    break
        if same:
            return played
        if self.record is not None:
            self.record.drop(self.id)
        self.opening = (await self.environment.reset(self.task, seed=self.world)).messages
        return ()

    async def _act(self, context: Context, conversation: Sequence[Message], tools: Sequence[ToolSpec]) -> Turn | None:
        """Let the actor speak and record the turn; None where a limit cut the action off."""
        number = len(self.turns)
        moment = Moment(
            self.task,
            context,
            conversation,
            tools,
            self.id,
            number,
            derive_seed(self.seed, "turn", number),
            self.greedy,
        )
        began = time.perf_counter()
        action = await self.actor.act(moment)
        turn = Turn(
            context=Tokens.written(context.new, Author.ENVIRONMENT),
            action=action.tokens,
            message=self.chat.read(action.tokens.ids, tools, turn=number),
            opens_segment=context.opens_segment,
            generation_seconds=time.perf_counter() - began,
            queue_seconds=action.queue_seconds,
        )
        self.turns.append(turn)
        self.closing = None
        return turn if action.complete else None


async def _closed(environment: Environment) -> None:
    """Close, and let a failure to close end nothing: the episode is over."""
    try:
        await environment.close()
    except Exception as failure:
        asyncio.get_running_loop().call_exception_handler(
            {"message": "an environment could not be closed", "exception": failure}
        )
