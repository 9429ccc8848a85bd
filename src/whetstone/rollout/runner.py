"""One episode, from reset to end.

    observe → act → read the action → step the environment → observe …

Behind each turn the method of a recipe may rewrite what was said so far, or stop the episode. Whatever happens, a
trajectory comes back that says how it ended: an exception, a hang or a limit is data.

Easy to get wrong: when something fails in the middle of a turn, the tokens sampled in it were still
sampled. The turn is kept, without an observation.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from whetstone.chat import Chat, Message, ToolSpec, user
from whetstone.contracts import fulfils
from whetstone.environments.protocol import Environment, Snapshots
from whetstone.errors import InfrastructureError, PromptTooLong, explained
from whetstone.plain_json import plain
from whetstone.rollout.drawn import drawn_spans
from whetstone.rollout.protocol import (
    NOTHING,
    Actor,
    ActorInput,
    Ask,
    Change,
    ContextTransform,
    EpisodeKey,
    EpisodeRecord,
    EpisodeState,
    Reopen,
    Repair,
    Rewrite,
    Siblings,
    Splice,
    Stop,
)
from whetstone.rollout.reading import Overflow, Reading
from whetstone.seeding import derive_seed
from whetstone.stopping import asked_to_stop
from whetstone.tools.protocol import GivesVerdict, stateless
from whetstone.trajectory import Author, Costs, EndReason, Task, Tokens, Trajectory, Turn


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
    splice: Splice | None = None
    """What its first own action begins with."""
    snapshot: Any = None
    """The environment behind those turns, where it can say; None: it is led there."""


@dataclass(slots=True)
class EpisodeHooks:
    """What a method does around one episode."""

    occasion: EpisodeKey
    context_transforms: tuple[ContextTransform, ...] = ()
    stops: tuple[tuple[str, Stop], ...] = ()
    """By name."""
    rewrites: tuple[Rewrite, ...] = ()
    overflow: Overflow = "drop"
    siblings: Siblings = field(default_factory=Siblings)
    """Kept up to date by the episode."""
    costs: Costs = field(default_factory=Costs)
    """What the episode came to cost, attempts that failed among it."""
    heard: Callable[[Turn], None] = lambda turn: None
    """Told of each turn behind which the episode goes on."""
    restarted: Callable[[], None] = lambda: None
    """Told where it is played again: those turns do not count."""
    snapshots: dict[int, Any] | None = None
    """Turns → the environment behind so many, filled where it can say; None: nobody asks."""


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
    around: EpisodeHooks | None = None,
) -> Trajectory:
    """Play one episode and close its environment. Never raises for what happens inside.

    Args:
        id: Names the trajectory; the engine keeps what it computed under this name until the end.
        seed: Decides every random choice of the episode.
        record: Told of each turn; where it holds turns of this episode, the episode goes on behind them.
        fork: The turns it begins with, of another episode in the same world; None begins anew.
        greedy: Whether the actor leaves nothing to chance.
        around: What a method does beside; None: nothing.

    Raises:
        PromptTooLong: The opening leaves no room for an answer: no sampling could help, so the task is at fault.
        asyncio.CancelledError: The caller gave up; the environment is closed all the same.
    """
    around = around if around is not None else EpisodeHooks(EpisodeKey(task, seed))
    episode = _Episode(task, environment, actor, chat, limits, id, seed, record, fork, greedy, around)
    started = time.perf_counter()
    error: str | None = None
    final: Mapping[str, Any] = {}
    try:
        async with asyncio.timeout(limits.timeout_seconds):
            ended = await episode.play()
            final = await episode.verdict()
    except TimeoutError as failure:
        # the environment may raise a TimeoutError of its own; the deadline's has no text
        in_time = time.perf_counter() - started < limits.timeout_seconds
        ended = EndReason.ERROR if in_time else EndReason.TIMEOUT
        error = f"TimeoutError: {failure}" if in_time else f"not over after {limits.timeout_seconds:g} s"
    except PromptTooLong as failure:
        if not episode.turns:
            raise
        ended, error = EndReason.CONTEXT_FULL, str(failure)  # what was made of its history has no room
    except _TurnTooLong as failure:
        ended, error = EndReason.TIMEOUT, str(failure)
    except InfrastructureError as failure:
        ended, error = EndReason.INFRASTRUCTURE, str(failure)
    except asyncio.CancelledError:
        if asked_to_stop():
            raise
        ended, error = EndReason.ERROR, "CancelledError: raised by the environment, nobody had cancelled it"
    except (Exception, SystemExit) as failure:  # the episode boundary: whatever a plug-in raises ends this alone
        ended, error = EndReason.ERROR, explained(failure)
    finally:
        actor.leave(id)
        around.siblings.under_way.pop(id, None)
        await _closed(environment)
    return Trajectory(
        id,
        task.id,
        episode.opening,
        tuple(episode.turns),
        ended,
        error,
        declared=episode.declared,
        marks=(*episode.marks, *(("view_dropped",) if episode.reading.dropped else ())),
        final=final,
        off_policy=episode.reading.off_policy,
        seconds=time.perf_counter() - started,
        closing=episode.closing if ended.cut_short else None,
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
        around: EpisodeHooks,
    ) -> None:
        self.task, self.environment, self.actor, self.chat = task, environment, actor, chat
        self.limits, self.id, self.seed = limits, id, seed
        # turns that are rewritten cannot be gone on behind: such an episode is played from its start
        self.record = record if not around.rewrites else None
        self.fork, self.greedy, self.around = fork, greedy, around
        self.world = fork.world if fork is not None else derive_seed(seed, "environment")
        self.reading = Reading(
            chat,
            around.context_transforms,
            context_length=limits.context_length,
            overflow=around.overflow,
            history=bool(around.rewrites),
        )
        self.begins: tuple[Message, ...] = ()
        """The opening as the environment gave it."""
        self.opening: tuple[Message, ...] = ()
        self.tools: tuple[ToolSpec, ...] = ()
        self.declared: tuple[tuple[str, str], ...] = ()
        self.turns: list[Turn] = []
        self.marks: list[str] = []
        self.author = Author.ENVIRONMENT
        """Who wrote what the policy reads next."""
        self.asked: Rewrite | None = None
        """Whom the next action answers, where it is not the environment."""
        self.closing: Tokens | None = None
        """What the model would read next, once an answer of the environment stands behind the last action."""

    async def play(self) -> EndReason:
        """Turn after turn until something ends the episode."""
        await self._open()
        for played in await self._played_before():
            self.turns.append(played)
            self.reading.as_it_was(played)
        while True:
            self.around.siblings.under_way[self.id] = len(self.turns)
            if self.turns and len(self.reading.seen.ids) + len(self._begun()) >= self.limits.context_length:
                return EndReason.CONTEXT_FULL
            async with self._turn_deadline():
                turn = await self._act()
                if turn is None:
                    return EndReason.MAX_TOKENS
                ended = await self._step(turn) if self.asked is None else None
            if ended is not None:
                return ended
            if self.asked is None:
                await self._rewritten(self.around.rewrites)
                for name, stop in self.around.stops:
                    if stop(self._so_far(), self.around.siblings):
                        self.marks.append(name)
                        return EndReason.EARLY_STOPPED
            else:
                await self._answered(turn)
            if sum(not turn.aside for turn in self.turns) >= self.limits.max_turns:
                return EndReason.MAX_TURNS
            if self.record is not None:
                self.record.add(self.id, self.turns[-1])
            await self._snap()
            self.around.heard(self.turns[-1])

    async def verdict(self) -> Mapping[str, Any]:
        """What the environment says of itself at the end."""
        if not fulfils(self.environment, GivesVerdict):
            return {}
        said = await _awaited(self.environment.verdict())
        if not isinstance(said, Mapping):
            raise TypeError(f"verdict() said {said!r}, not a mapping such as {{'success': True}}")
        final: Mapping[str, Any] = plain(said)  # it is kept with the trajectory
        return final

    async def _open(self) -> None:
        first = await self.environment.reset(self.task, seed=self.world)
        self.author = first.author
        self.begins, self.tools, self.declared = first.messages, first.tools, first.declared
        self.opening = self.reading.open(first.messages, first.tools, self._so_far())

    async def _step(self, turn: Turn) -> EndReason | None:
        """Let the environment answer; how the episode ended, if it did."""
        began = time.perf_counter()
        self.around.costs += Costs(environment_steps=1)
        result = await self.environment.step(turn.message)
        turn = self.turns[-1] = replace(
            turn,
            observation=result.observation.messages,
            reward=result.reward,
            calls=result.calls,
            environment_seconds=time.perf_counter() - began,
        )
        self.around.costs += Costs(tool_calls=len(result.calls))
        self.tools = result.observation.tools or self.tools
        self.author = result.observation.author
        if result.ended is not None and not result.ended.cut_short:
            return result.ended
        if result.instead is not None:
            self.reading.instead(turn, self.chat.write(result.instead, self.tools), result.instead)
            self.marks.append("patched")
            return result.ended
        if result.afresh:
            self.reading.afresh(turn, self.tools, self._so_far())
            self.marks.append("rewritten")
            return result.ended
        shown = self.reading.answer(turn, self._so_far())
        if shown != turn.observation:
            self.turns[-1] = replace(turn, observation=shown)
        if not self.reading.seen.opens_segment:
            self.closing = Tokens.written(self.reading.seen.new, self.author)
        return result.ended

    async def _answered(self, turn: Turn) -> None:
        """The policy said what it was asked for."""
        assert self.asked is not None
        self.turns[-1] = replace(turn, aside=True)
        self.reading.as_it_was(self.turns[-1])
        asked, self.asked = self.asked, None
        await self._rewritten((asked,))

    async def _rewritten(self, rewrites: Sequence[Rewrite]) -> None:
        """Do what the first that wants something wants."""
        for rewrite in rewrites:
            change = await rewrite(self._so_far())
            if change is not None:
                self._change(change, rewrite)
                return

    def _change(self, change: Change, rewrite: Rewrite) -> None:
        self.closing = None
        if isinstance(change, Reopen):
            self.reading.reopen(change.messages, self.tools, self._so_far())
        elif isinstance(change, Repair):
            self.reading.back_to(change.turn)
            ids = self.chat.write(change.message, self.tools)
            repaired = Turn(
                context=Tokens.written(self.reading.seen.new, Author.ENVIRONMENT),
                action=Tokens.written(ids, Author.CORRECTED),
                message=self.chat.read(ids, self.tools, turn=change.turn),
                observation=change.observation,
                calls=change.calls,
                opens_segment=self.reading.seen.opens_segment,
                training_context=self.reading.training_context,
            )
            self.turns[change.turn :] = [repaired]
            self.reading.as_it_was(repaired)
            self.marks.append("repaired")
        else:
            assert isinstance(change, Ask)
            self._ask(change, rewrite)

    def _ask(self, change: Ask, rewrite: Rewrite) -> None:
        if change.drop:
            del self.turns[-change.drop :]
            self.marks.append("turn_dropped")
        question = user(change.text)
        if self.turns:
            last = self.turns[-1] = replace(self.turns[-1], observation=(*self.turns[-1].observation, question))
            self.reading.back_to(len(self.turns) - 1)
            self.reading.as_it_was(last)
        else:
            self.reading.reopen((*self.begins, question), self.tools, self._so_far())
        self.asked = rewrite

    def _so_far(self) -> EpisodeState:
        return EpisodeState(
            self.around.occasion,
            self.begins,
            tuple(self.turns),
            self.tools,
            len(self.reading.seen.ids) if self.reading.begun else 0,
            self.limits.context_length,
            self.limits.max_turns,
        )

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

    async def _played_before(self) -> tuple[Turn, ...]:
        """The turns it shares with another episode and those a record holds of it, with the environment behind them.

        An environment whose answers depend on the action alone is there already, and one that can be restored is put
        there. Any other is led through the same actions again; where it does not answer as it did, the record is of
        no use, and a fork begins anew, marked `not_forked`.
        """
        shared = self.fork.turns if self.fork is not None else ()
        recorded = self.record.played(self.id) if self.record is not None else ()
        played = (*shared, *recorded)
        if not played:
            return ()
        if played[0].context.ids == tuple(self.reading.seen.new) and await self._led_through(played):
            self.around.costs += Costs(reused_tokens=sum(len(turn.context) + len(turn.action) for turn in shared))
            self._count(recorded)
            return played
        if self.record is not None:
            self.record.drop(self.id)
        if shared:
            self.marks.append("not_forked")
            self.fork = None
        await self._open()
        return ()

    async def _led_through(self, played: tuple[Turn, ...]) -> bool:
        """Bring the environment behind these turns; whether it is there."""
        if stateless(self.environment):
            return True
        behind = 0
        if self.fork is not None and self.fork.snapshot is not None:
            await _awaited(self.environment.restore(self.fork.snapshot))  # type: ignore[attr-defined]
            behind = len(self.fork.turns)
        for number in range(behind, len(played)):
            self.around.costs += Costs(environment_steps=1)
            answer = await self.environment.step(played[number].message)
            self.tools = answer.observation.tools or self.tools
            self.author = answer.observation.author
            messages = answer.observation.messages
            so_far = replace(self._so_far(), turns=(*played[:number], replace(played[number], observation=messages)))
            for view in self.around.context_transforms:
                messages = view.observation(messages, so_far)
            if answer.ended is not None or answer.instead is not None or messages != played[number].observation:
                return False  # or what stands in the history is not what was said
        return True

    async def _act(self) -> Turn | None:
        """Let the actor speak and record the turn; None where a limit cut the action off."""
        number, context = len(self.turns), self.reading.seen
        begun = self._begun()
        moment = ActorInput(
            self.task,
            context,
            self.reading.conversation,
            self.tools,
            self.id,
            number,
            derive_seed(self.seed, "turn", number),
            self.greedy,
            begun,
            drawn_spans(self.turns, context, begun),
        )
        began = time.perf_counter()
        action = await self.actor.act(moment)
        tokens = Tokens.joined([begun, action.tokens]) if len(begun) else action.tokens
        turn = Turn(
            context=Tokens.written(context.new, self.author),
            action=tokens,
            message=action.message or self.chat.read(tokens.ids, self.tools, turn=number),
            opens_segment=context.opens_segment,
            training_context=self.reading.training_context,
            generation_seconds=time.perf_counter() - began,
            queue_seconds=action.queue_seconds,
        )
        self.around.costs += Costs(sampled_tokens=_drawn(action.tokens))
        self.turns.append(turn)
        self.closing = None
        return turn if action.complete else None

    def _begun(self) -> Tokens:
        """What the next action begins with already."""
        splice = self.fork.splice if self.fork is not None and len(self.turns) == len(self.fork.turns) else None
        return NOTHING if splice is None else Tokens.joined([splice.kept, splice.inserted])

    def _count(self, turns: Sequence[Turn]) -> None:
        """What was spent on turns before a kill was spent."""
        for turn in turns:
            self.around.costs += Costs(_drawn(turn.action), 0, len(turn.calls), 1)

    async def _snap(self) -> None:
        """Keep what an environment says it takes to come back here, where somebody may want to part from here."""
        if self.around.snapshots is not None and fulfils(self.environment, Snapshots):
            self.around.snapshots[len(self.turns)] = await _awaited(self.environment.snapshot())


def _drawn(tokens: Tokens) -> int:
    return sum(author is Author.POLICY for author in tokens.authors)


async def _awaited(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


async def _closed(environment: Environment) -> None:
    """Close, and let a failure to close end nothing: the episode is over."""
    try:
        await environment.close()
    except (Exception, SystemExit) as failure:
        asyncio.get_running_loop().call_exception_handler(
            {"message": "an environment could not be closed", "exception": failure}
        )
