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
) -> Trajectory:
    """Play one episode and close its environment. Never raises for what happens inside.

    Args:
        id: Names the trajectory; the engine keeps what it computed under this name until the end.
        seed: Decides every random choice of the episode.
        record: Told of each turn; where it holds turns of this episode, the episode goes on behind them.

    Raises:
        PromptTooLong: The opening leaves no room for an answer: no sampling could help, so the task is at fault.
        asyncio.CancelledError: The caller gave up; the environment is closed all the same.
    """
    episode = _Episode(task, environment, actor, chat, limits, id, seed, record)
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
    return Trajectory(id, task.id, episode.opening, tuple(episode.turns), ended, error, seconds=seconds)


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
    ) -> None:
        self.task, self.environment, self.actor, self.chat = task, environment, actor, chat
        self.limits, self.id, self.seed, self.record = limits, id, seed, record
        self.opening: tuple[Message, ...] = ()
        self.turns: list[Turn] = []

    async def play(self) -> EndReason:
        """Turn after turn until something ends the episode."""
        first = await self.environment.reset(self.task, seed=derive_seed(self.seed, "environment"))
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
            if result.ended is not None:
                return result.ended
            if len(self.turns) >= self.limits.max_turns:
                return EndReason.MAX_TURNS
            conversation += [turn.message, *result.observation.messages]
            context = self.chat.extend(context, turn.action.ids, result.observation.messages)
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
        """The turns a record holds of this episode, with the environment where they left it; none to begin anew.

        An environment whose answers depend on the action alone is there already. Any other is led through the same
        actions again; where it does not answer as it did, the record is of no use.
        """
        if self.record is None:
            return ()
        played = self.record.played(self.id)
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
        self.record.drop(self.id)
        self.opening = (await self.environment.reset(self.task, seed=derive_seed(self.seed, "environment"))).messages
        return ()

    async def _act(self, context: Context, conversation: Sequence[Message], tools: Sequence[ToolSpec]) -> Turn | None:
        """Let the actor speak and record the turn; None where a limit cut the action off."""
        number = len(self.turns)
        moment = Moment(
            self.task, context, conversation, tools, self.id, number, derive_seed(self.seed, "turn", number)
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
        return turn if action.complete else None


async def _closed(environment: Environment) -> None:
    """Close, and let a failure to close end nothing: the episode is over."""
    try:
        await environment.close()
    except Exception as failure:
        asyncio.get_running_loop().call_exception_handler(
            {"message": "an environment could not be closed", "exception": failure}
        )
