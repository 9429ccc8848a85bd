"""One episode, from reset to end.

    observe → act → read the action → step the environment → observe …

Behind each turn the method of a recipe may rewrite what was said so far, or stop the episode. Whatever happens, a
trajectory comes back that says how it ended: an exception, a hang or a limit is data.

Easy to get wrong: when something fails in the middle of a turn, the tokens sampled in it were still
sampled. The turn is kept, without an observation.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from whetstone.chat import Chat, Message, ToolSpec, user
from whetstone.contracts import fulfils
from whetstone.environments.protocol import Environment, Observation, SeatRequest, Snapshots, StepResult, TakesSeat
from whetstone.errors import EpisodeError, InfrastructureError, PromptTooLong
from whetstone.plain_json import plain
from whetstone.rollout.deadline_blame import Stage, TurnTooLong, blame
from whetstone.rollout.drawn import count_sampled, drawn_spans
from whetstone.rollout.episode_inputs import EpisodeHooks, Fork, Limits
from whetstone.rollout.protocol import (
    NOTHING,
    Action,
    Actor,
    ActorInput,
    Ask,
    Change,
    EpisodeKey,
    EpisodeRecord,
    EpisodeState,
    HasOwner,
    Reopen,
    Repair,
    Rewrite,
)
from whetstone.rollout.reading import Reading
from whetstone.seeding import derive_seed
from whetstone.stopping import asked_to_stop
from whetstone.tools.protocol import GivesVerdict, ToolUnavailable, provenance_of, stateless
from whetstone.tools.threads import call_user_function
from whetstone.trajectory import Author, Costs, EndReason, Task, Tokens, Trajectory, Turn
from whetstone.user_code import describe_exception
from whetstone.waiting import (
    DeadlinePassed,
    close_within,
    collect_waits,
    deadline,
    finish_within,
    waiting_for,
)

_SPARE_SECONDS = 15.0
"""Behind its deadlines, an episode may take this long to find out whether its engine answers, and to end."""


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
    seat: SeatRequest | None = None,
) -> Trajectory:
    """Play one episode and close its environment. Never raises for what happens inside.

    Args:
        id: Names the trajectory; the engine keeps what it computed under this name until the end.
        seed: Decides every random choice of the episode.
        record: Told of each turn; where it holds turns of this episode, the episode goes on behind them.
        fork: The turns it begins with, of another episode in the same world; None begins anew.
        greedy: Whether the actor leaves nothing to chance.
        around: What a method does beside; None: nothing.
        seat: Seat in a game of several players; None: the policy is the only player.

    Raises:
        PromptTooLong: The opening leaves no room for an answer: no sampling could help, so the task is at fault.
        asyncio.CancelledError: The caller gave up; the environment is closed all the same.
    """
    around = around if around is not None else EpisodeHooks(EpisodeKey(task, seed))
    episode = _Episode(task, environment, actor, chat, limits, id, seed, record, fork, greedy, around, seat)
    with collect_waits():
        try:
            # one task for all of it: what an environment enters in `reset`, it can leave in `close` alone
            seconds = limits.timeout_seconds + limits.close_seconds + _SPARE_SECONDS
            return await finish_within(seconds, episode.run(), owner="the episode", patience=limits.close_seconds + 1)
        except DeadlinePassed as late:  # it ignores that it was cancelled
            episode.is_over = True
            return episode.trajectory(*await blame(late, episode.stage, episode.actor, turns=len(episode.turns)))
        except asyncio.CancelledError:
            if asked_to_stop():
                raise
            return episode.trajectory(EndReason.ERROR, "CancelledError: the environment cancelled its own episode")


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
        seat: SeatRequest | None,
    ) -> None:
        self.task, self.environment, self.actor, self.chat = task, environment, actor, chat
        self.limits, self.id, self.seed = limits, id, seed
        # turns that are rewritten cannot be gone on behind: such an episode is played from its start
        self.record = record if not around.rewrites else None
        self.fork, self.greedy, self.around, self.seat = fork, greedy, around, seat
        self.provenance = provenance_of(actor, environment)
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
        self.agent = ""
        self.author = Author.ENVIRONMENT
        """Who wrote what the policy reads next."""
        self.asked: Rewrite | None = None
        """Whom the next action answers, where it is not the environment."""
        self.closing: Tokens | None = None
        """What the model would read next, once an answer of the environment stands behind the last action."""
        self.final: Mapping[str, Any] = {}
        """Final state that the environment reports."""
        self.stage = Stage.OPEN
        self.started = time.perf_counter()
        self.is_over = False
        """Whether the trajectory is complete; a coroutine that ignored its cancellation then does nothing more."""

    async def run(self) -> Trajectory:
        """Play the episode and close its environment."""
        error: str | None = None
        unclosed = ""
        try:
            async with deadline(self.limits.timeout_seconds, owner="the episode"):
                ended = await self.play()
        except DeadlinePassed as late:
            ended, error = await blame(late, self.stage, self.actor, turns=len(self.turns))
        except TurnTooLong as turn:
            ended, error = await blame(turn.passed, self.stage, self.actor, turns=len(self.turns), turn=turn.number)
        except PromptTooLong as failure:
            if not self.turns:
                raise
            ended, error = EndReason.CONTEXT_FULL, str(failure)  # what was made of its history has no room
        except InfrastructureError as failure:
            ended, error = EndReason.INFRASTRUCTURE, str(failure)
            if isinstance(failure, ToolUnavailable):
                self.turns[-1:] = [replace(turn, calls=failure.calls) for turn in self.turns[-1:]]
        except asyncio.CancelledError:
            if asked_to_stop():
                raise
            ended, error = EndReason.ERROR, "CancelledError: raised by the environment, nobody had cancelled it"
        except (Exception, SystemExit) as failure:  # the episode boundary: whatever a plug-in raises ends this alone
            ended, error = EndReason.ERROR, describe_exception(failure)
        finally:
            self.is_over = True
            self.actor.leave(self.id)
            self.around.siblings.under_way.pop(self.id, None)
            closing = call_user_function(self.environment.close)
            unclosed = await close_within(self.limits.close_seconds, closing, owner="its environment (close)")
        return self.trajectory(ended, error, unclosed)

    def trajectory(self, ended: EndReason, error: str | None, unclosed: str = "") -> Trajectory:
        """Return the trajectory of the episode."""
        marks = {"view_dropped": self.reading.dropped, "not_closed": unclosed}
        return Trajectory(
            self.id,
            self.task.id,
            self.opening,
            tuple(self.turns),
            ended,
            "; ".join(filter(None, (error, unclosed))) or None,
            declared=self.declared,
            marks=(*self.marks, *(mark for mark, given in marks.items() if given)),
            final=self.final,
            off_policy=self.reading.off_policy,
            seconds=time.perf_counter() - self.started,
            closing=self.closing if ended.cut_short else None,
            provenance=self.provenance,
        )

    async def play(self) -> EndReason:
        """Play until something ends the episode, and ask the environment for its verdict."""
        ended = await self._turns()
        if fulfils(self.environment, GivesVerdict):
            said = await self._at(Stage.VERDICT, "its environment (verdict)", self.environment.verdict)
            if not isinstance(said, Mapping):
                raise TypeError(f"verdict() said {said!r}, not a mapping such as {{'success': True}}")
            self.final = plain(said)  # it is kept with the trajectory
        return ended

    async def _at(self, stage: Stage, owner: str, call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Call a function of the environment or the actor; `owner` is waited for meanwhile."""
        if self.is_over:
            raise asyncio.CancelledError
        self.stage = stage
        with waiting_for(owner):
            return await call_user_function(call, *arguments, **options)

    async def _turns(self) -> EndReason:
        await self._open()
        for played in await self._played_before():
            self.turns.append(played)
            self.reading.as_it_was(played)
        while True:
            self.around.siblings.under_way[self.id] = len(self.turns)
            if self.turns and len(self.reading.seen.ids) + len(self._begun()) >= self.limits.context_length:
                return EndReason.CONTEXT_FULL
            turn, ended = await self._next_turn()
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
            self.around.on_turn(self.turns[-1])

    async def _next_turn(self) -> tuple[Turn, EndReason | None]:
        """One action and the answer to it, within the deadline of a turn; (the turn, how the episode ended with it)."""
        number = len(self.turns) + 1
        try:
            async with deadline(self.limits.turn_timeout_seconds, owner="the turn"):
                return await self._act_and_step()
        except DeadlinePassed as passed:
            raise TurnTooLong(passed, number) from None

    async def _act_and_step(self) -> tuple[Turn, EndReason | None]:
        turn, is_complete = await self._act()
        if not is_complete:
            return turn, EndReason.MAX_TOKENS
        return turn, await self._step(turn) if self.asked is None else None

    async def _open(self) -> None:
        if self.seat is not None and fulfils(self.environment, TakesSeat):
            self.environment.take_seat(self.seat)
        reset = self.environment.reset
        first: Observation = await self._at(Stage.OPEN, "its environment (reset)", reset, self.task, seed=self.world)
        self.author, self.agent = first.author, first.agent
        self.begins, self.tools, self.declared = first.messages, first.tools, first.declared
        self.opening = self.reading.open(first.messages, first.tools, self._so_far())

    async def _step(self, turn: Turn) -> EndReason | None:
        """Let the environment answer; how the episode ended, if it did."""
        began = time.perf_counter()
        self.around.costs += Costs(environment_steps=1)
        owner = ", ".join(sorted({call.name for call in turn.message.tool_calls})) or "its environment"
        result: StepResult = await self._at(Stage.STEP, owner, self.environment.step, turn.message)
        turn = self.turns[-1] = replace(
            turn,
            observation=result.observation.messages,
            reward=result.reward,
            calls=result.calls,
            environment_seconds=time.perf_counter() - began,
        )
        self.around.costs += Costs(tool_calls=len(result.calls))
        seen = result.observation
        has_switched = seen.conversation != self.reading.number
        self.tools = seen.tools if has_switched else seen.tools or self.tools
        self.author, self.agent = seen.author, seen.agent
        if result.ended is not None and not result.ended.cut_short:
            return result.ended
        if result.instead is not None:
            self.reading.instead(turn, self.chat.write(result.instead, self.tools), result.instead)
            self.marks.append("patched")
            return result.ended
        shown = self._switch(turn, seen) if has_switched else self.reading.answer(turn, self._so_far())
        if shown != turn.observation:
            self.turns[-1] = replace(turn, observation=shown)
        if not has_switched and not self.reading.seen.opens_segment:
            self.closing = Tokens.written(self.reading.seen.new, self.author)
        return result.ended

    def _switch(self, turn: Turn, seen: Observation) -> tuple[Message, ...]:
        """Continue in another conversation; returns its new messages as they are read."""
        if self.around.rewrites:
            raise EpisodeError(
                "the agent holds several conversations, and a context rewrite of the recipe works on one; "
                "remove `rollout.context_rewrites`, or keep the agent's messages in one conversation"
            )
        shown = self.reading.switch(turn, seen.conversation, seen.messages, self.tools, self._so_far())
        if self.reading.seen.opens_segment and "rewritten" not in self.marks:
            self.marks.append("rewritten")
        return shown

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
            with waiting_for("a context rewrite"):
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
        if played[0].context.sequence == self.reading.seen.new and await self._led_through(played):
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
            restore: Any = self.environment.restore  # type: ignore[attr-defined]
            await self._at(Stage.OPEN, "its environment (restore)", restore, self.fork.snapshot)
            behind = len(self.fork.turns)
        for number in range(behind, len(played)):
            self.around.costs += Costs(environment_steps=1)
            step, message = self.environment.step, played[number].message
            answer: StepResult = await self._at(Stage.OPEN, "its environment (replay)", step, message)
            self.tools = answer.observation.tools or self.tools
            self.author, self.agent = answer.observation.author, answer.observation.agent
            messages = answer.observation.messages
            if answer.observation.conversation != self.reading.number:
                return False  # the episode holds several conversations
            so_far = replace(self._so_far(), turns=(*played[:number], replace(played[number], observation=messages)))
            for view in self.around.context_transforms:
                messages = view.observation(messages, so_far)
            if answer.ended is not None or answer.instead is not None or messages != played[number].observation:
                return False  # or what stands in the history is not what was said
        return True

    async def _act(self) -> tuple[Turn, bool]:
        """Let the actor speak and record the turn; (the turn, whether no limit cut the action off)."""
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
            drawn_spans(self.turns, context, begun, self.reading.number),
        )
        began = time.perf_counter()
        owner = self.actor.owner if fulfils(self.actor, HasOwner) else "the actor"
        action: Action = await self._at(Stage.ACT, f"{owner} (turn {number + 1})", self.actor.act, moment)
        tokens = Tokens.joined([begun, action.tokens]) if len(begun) else action.tokens
        turn = Turn(
            context=Tokens.written(context.new, self.author),
            action=tokens,
            message=action.message or self.chat.read(tokens.ids, self.tools, turn=number),
            opens_segment=context.opens_segment,
            training_context=self.reading.training_context,
            conversation=self.reading.number,
            agent=self.agent,
            generation_seconds=time.perf_counter() - began,
            queue_seconds=action.queue_seconds,
        )
        self.around.costs += Costs(sampled_tokens=count_sampled(action.tokens))
        self.turns.append(turn)
        self.closing = None
        return turn, action.complete

    def _begun(self) -> Tokens:
        """What the next action begins with already."""
        splice = self.fork.splice if self.fork is not None and len(self.turns) == len(self.fork.turns) else None
        return NOTHING if splice is None else Tokens.joined([splice.kept, splice.inserted])

    def _count(self, turns: Sequence[Turn]) -> None:
        """What was spent on turns before a kill was spent."""
        for turn in turns:
            self.around.costs += Costs(count_sampled(turn.action), 0, len(turn.calls), 1)

    async def _snap(self) -> None:
        """Keep what an environment says it takes to come back here, where somebody may want to part from here."""
        if self.around.snapshots is not None and fulfils(self.environment, Snapshots):
            kept = await self._at(Stage.STEP, "its environment (snapshot)", self.environment.snapshot)
            self.around.snapshots[len(self.turns)] = kept
