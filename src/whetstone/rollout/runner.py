"""Runner of one episode, from reset to end.

    observe → act → parse the action → step the environment → observe …

After each turn the method of a recipe can rewrite the history or stop the episode. The result is always a trajectory
with an end reason: an exception, a hang or a limit is data.

Note:
    If something fails in the middle of a turn, the tokens sampled in it were still sampled. The turn is kept, without
    an observation.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from whetstone.cancellation import is_cancellation_requested
from whetstone.capabilities import implements_protocol
from whetstone.chat import Chat, Message, ToolSpec, user
from whetstone.environments.protocol import Environment, Observation, SeatRequest, Snapshots, StepResult, TakesSeat
from whetstone.errors import EpisodeError, InfrastructureError, PromptTooLong
from whetstone.rollout.context_builder import ContextBuilder
from whetstone.rollout.deadline_blame import Stage, TurnTooLong, attribute_deadline
from whetstone.rollout.episode_inputs import EpisodeHooks, EpisodeLimits, Fork
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
    PatchTurn,
    RestartContext,
    Rewrite,
)
from whetstone.rollout.sampled_spans import count_sampled, find_sampled_spans
from whetstone.seeding import derive_seed
from whetstone.strict_json import to_plain_values
from whetstone.tools.protocol import GivesVerdict, ToolUnavailable, find_provenance, stateless
from whetstone.tools.thread_runner import call_user_function
from whetstone.trajectory import Author, Costs, EndReason, Task, Tokens, Trajectory, Turn
from whetstone.user_code import describe_exception
from whetstone.waiting import (
    DeadlinePassed,
    close_within,
    collect_waits,
    finish_within,
    limit_duration,
    waiting_for,
)

_SPARE_SECONDS = 15.0
"""Seconds after its deadline that an episode may take to probe its engine, and to end."""


async def run_episode(
    task: Task,
    *,
    environment: Environment,
    actor: Actor,
    chat: Chat,
    limits: EpisodeLimits,
    id: str,
    seed: int,
    record: EpisodeRecord | None = None,
    fork: Fork | None = None,
    greedy: bool = False,
    hooks: EpisodeHooks | None = None,
    seat: SeatRequest | None = None,
) -> Trajectory:
    """Play one episode and close its environment. Never raises for failures inside the episode.

    Args:
        id: Id of the trajectory; the engine stores its KV cache under this id until the end.
        seed: Determines every random choice of the episode.
        record: Receives each turn; if it has turns of this episode, the episode resumes after them.
        fork: Turns of another episode in the same environment that this one starts with; None: a new episode.
        greedy: Whether the actor decodes greedily.
        hooks: Hooks of the method; None: none.
        seat: Seat in a game of several players; None: the policy is the only player.

    Raises:
        PromptTooLong: If the prompt leaves no room for a response. No sampling could help, so it is an error of the
            task.
        asyncio.CancelledError: If the caller cancels the episode; its environment is closed, too.
    """
    hooks = hooks if hooks is not None else EpisodeHooks(EpisodeKey(task, seed))
    episode = _Episode(task, environment, actor, chat, limits, id, seed, record, fork, greedy, hooks, seat)
    with collect_waits():
        try:
            # one task: an environment may enter a context in `reset` that it must leave in the same task
            seconds = limits.timeout_seconds + limits.close_seconds + _SPARE_SECONDS
            return await finish_within(seconds, episode.run(), owner="the episode", patience=limits.close_seconds + 1)
        except DeadlinePassed as late:  # the episode ignores its cancellation
            episode.is_over = True
            return episode.trajectory(
                *await attribute_deadline(late, episode.stage, episode.actor, turns=len(episode.turns))
            )
        except asyncio.CancelledError:
            if is_cancellation_requested():
                raise
            return episode.trajectory(EndReason.ERROR, "CancelledError: the environment cancelled its own episode")


class _Episode:
    """State of a running episode; turns stay readable when `play` is cancelled."""

    def __init__(
        self,
        task: Task,
        environment: Environment,
        actor: Actor,
        chat: Chat,
        limits: EpisodeLimits,
        id: str,
        seed: int,
        record: EpisodeRecord | None,
        fork: Fork | None,
        greedy: bool,
        hooks: EpisodeHooks,
        seat: SeatRequest | None,
    ) -> None:
        self.task, self.environment, self.actor, self.chat = task, environment, actor, chat
        self.limits, self.id, self.seed = limits, id, seed
        # an episode with rewritten turns cannot resume from a record: it is played from its start
        self.record = record if not hooks.rewrites else None
        self.fork, self.greedy, self.hooks, self.seat = fork, greedy, hooks, seat
        self.provenance = find_provenance(actor, environment)
        self.environment_seed = fork.environment_seed if fork is not None else derive_seed(seed, "environment")
        self.reading = ContextBuilder(
            chat,
            hooks.context_transforms,
            context_length=limits.context_length,
            overflow=hooks.overflow,
            history=bool(hooks.rewrites),
        )
        self.begins: tuple[Message, ...] = ()
        """Initial messages of the environment."""
        self.opening: tuple[Message, ...] = ()
        self.tools: tuple[ToolSpec, ...] = ()
        self.declared: tuple[tuple[str, str], ...] = ()
        self.turns: list[Turn] = []
        self.marks: list[str] = []
        self.agent = ""
        self.author = Author.ENVIRONMENT
        """Author of the messages that the policy reads next."""
        self.asked: Rewrite | None = None
        """Rewrite that the next action responds to; None: the environment."""
        self.closing: Tokens | None = None
        """Tokens that the model would read next, if an observation follows the last action."""
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
            async with limit_duration(self.limits.timeout_seconds, owner="the episode"):
                ended = await self.play()
        except DeadlinePassed as late:
            ended, error = await attribute_deadline(late, self.stage, self.actor, turns=len(self.turns))
        except TurnTooLong as turn:
            ended, error = await attribute_deadline(
                turn.passed, self.stage, self.actor, turns=len(self.turns), turn=turn.number
            )
        except PromptTooLong as failure:
            if not self.turns:
                raise
            ended, error = EndReason.CONTEXT_FULL, str(failure)  # the rewritten history does not fit
        except InfrastructureError as failure:
            ended, error = EndReason.INFRASTRUCTURE, str(failure)
            if isinstance(failure, ToolUnavailable):
                self.turns[-1:] = [replace(turn, calls=failure.calls) for turn in self.turns[-1:]]
        except asyncio.CancelledError:
            if is_cancellation_requested():
                raise
            ended, error = EndReason.ERROR, "CancelledError: raised by the environment without a cancellation"
        except (Exception, SystemExit) as failure:  # boundary: any plug-in error ends only this episode
            ended, error = EndReason.ERROR, describe_exception(failure)
        finally:
            self.is_over = True
            self.actor.leave(self.id)
            self.hooks.siblings.running.pop(self.id, None)
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
            marks=(*self.marks, *(mark for mark, is_set in marks.items() if is_set)),
            final=self.final,
            off_policy=self.reading.off_policy,
            seconds=time.perf_counter() - self.started,
            closing=self.closing if ended.cut_short else None,
            provenance=self.provenance,
        )

    async def play(self) -> EndReason:
        """Play until the episode ends, and query the environment's verdict."""
        ended = await self._turns()
        if implements_protocol(self.environment, GivesVerdict):
            verdict = await self._at(Stage.VERDICT, "its environment (verdict)", self.environment.verdict)
            if not isinstance(verdict, Mapping):
                raise TypeError(f"verdict() returned {verdict!r}, not a mapping such as {{'success': True}}")
            self.final = to_plain_values(verdict)  # it is kept with the trajectory
        return ended

    async def _at(self, stage: Stage, owner: str, call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Call a function of the environment or the actor; `owner` is reported as waited for."""
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
            self.hooks.siblings.running[self.id] = len(self.turns)
            if self.turns and len(self.reading.seen.ids) + len(self._action_prefix()) >= self.limits.context_length:
                return EndReason.CONTEXT_FULL
            turn, ended = await self._next_turn()
            if ended is not None:
                return ended
            if self.asked is None:
                await self._rewritten(self.hooks.rewrites)
                for name, stop in self.hooks.stops:
                    if stop(self._so_far(), self.hooks.siblings):
                        self.marks.append(name)
                        return EndReason.EARLY_STOPPED
            else:
                await self._answered(turn)
            if sum(not turn.aside for turn in self.turns) >= self.limits.max_turns:
                return EndReason.MAX_TURNS
            if self.record is not None:
                self.record.add(self.id, self.turns[-1])
            await self._snap()
            self.hooks.on_turn(self.turns[-1])

    async def _next_turn(self) -> tuple[Turn, EndReason | None]:
        """Play one action and its observation within the deadline of a turn.

        Return the turn and the end reason.
        """
        number = len(self.turns) + 1
        try:
            async with limit_duration(self.limits.turn_timeout_seconds, owner="the turn"):
                return await self._act_and_step()
        except DeadlinePassed as passed:
            raise TurnTooLong(passed, number) from None

    async def _act_and_step(self) -> tuple[Turn, EndReason | None]:
        turn, is_complete = await self._act()
        if not is_complete:
            return turn, EndReason.MAX_TOKENS
        return turn, await self._step(turn) if self.asked is None else None

    async def _open(self) -> None:
        if self.seat is not None and implements_protocol(self.environment, TakesSeat):
            self.environment.take_seat(self.seat)
        reset = self.environment.reset
        first: Observation = await self._at(
            Stage.OPEN, "its environment (reset)", reset, self.task, seed=self.environment_seed
        )
        self.author, self.agent = first.author, first.agent
        self.begins, self.tools, self.declared = first.messages, first.tools, first.declared
        self.opening = self.reading.open(first.messages, first.tools, self._so_far())

    async def _step(self, turn: Turn) -> EndReason | None:
        """Step the environment; return the end reason, or None."""
        began = time.perf_counter()
        self.hooks.costs += Costs(environment_steps=1)
        owner = ", ".join(sorted({call.name for call in turn.message.tool_calls})) or "its environment"
        result: StepResult = await self._at(Stage.STEP, owner, self.environment.step, turn.message)
        turn = self.turns[-1] = replace(
            turn,
            observation=result.observation.messages,
            reward=result.reward,
            calls=result.calls,
            environment_seconds=time.perf_counter() - began,
        )
        self.hooks.costs += Costs(tool_calls=len(result.calls))
        seen = result.observation
        has_switched = seen.conversation != self.reading.number
        self.tools = seen.tools if has_switched else seen.tools or self.tools
        self.author, self.agent = seen.author, seen.agent
        if result.ended is not None and not result.ended.cut_short:
            return result.ended
        if result.executed_action is not None:
            self.reading.replace_turn(turn, self.chat.write(result.executed_action, self.tools), result.executed_action)
            self.marks.append("patched")
            return result.ended
        transformed = self._switch(turn, seen) if has_switched else self.reading.answer(turn, self._so_far())
        if transformed != turn.observation:
            self.turns[-1] = replace(turn, observation=transformed)
        if not has_switched and not self.reading.seen.opens_segment:
            self.closing = Tokens.from_ids(self.reading.seen.new, self.author)
        return result.ended

    def _switch(self, turn: Turn, seen: Observation) -> tuple[Message, ...]:
        """Continue in another conversation; return its new messages as the policy reads them."""
        if self.hooks.rewrites:
            raise EpisodeError(
                "the agent has several conversations, and a context rewrite of the recipe supports one; "
                "remove `rollout.context_rewrites`, or keep the agent's messages in one conversation"
            )
        transformed = self.reading.switch_context(turn, seen.conversation, seen.messages, self.tools, self._so_far())
        if self.reading.seen.opens_segment and "rewritten" not in self.marks:
            self.marks.append("rewritten")
        return transformed

    async def _answered(self, turn: Turn) -> None:
        """Process the response of the policy to a question of the rollout."""
        assert self.asked is not None
        self.turns[-1] = replace(turn, aside=True)
        self.reading.as_it_was(self.turns[-1])
        rewrite, self.asked = self.asked, None
        await self._rewritten((rewrite,))

    async def _rewritten(self, rewrites: Sequence[Rewrite]) -> None:
        """Apply the first change that a rewrite returns."""
        for rewrite in rewrites:
            with waiting_for("a context rewrite"):
                change = await rewrite(self._so_far())
            if change is not None:
                self._change(change, rewrite)
                return

    def _change(self, change: Change, rewrite: Rewrite) -> None:
        self.closing = None
        if isinstance(change, RestartContext):
            self.reading.replace_context(change.messages, self.tools, self._so_far())
        elif isinstance(change, PatchTurn):
            self.reading.back_to(change.turn)
            ids = self.chat.write(change.message, self.tools)
            repaired = Turn(
                context=Tokens.from_ids(self.reading.seen.new, Author.ENVIRONMENT),
                action=Tokens.from_ids(ids, Author.CORRECTED),
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
            self.reading.replace_context((*self.begins, question), self.tools, self._so_far())
        self.asked = rewrite

    def _so_far(self) -> EpisodeState:
        return EpisodeState(
            self.hooks.occasion,
            self.begins,
            tuple(self.turns),
            self.tools,
            len(self.reading.seen.ids) if self.reading.has_context else 0,
            self.limits.context_length,
            self.limits.max_turns,
        )

    async def _played_before(self) -> tuple[Turn, ...]:
        """Return shared and recorded turns, with the environment in the state after them.

        A stateless environment needs nothing, and one with snapshots is restored. Any other replays the same actions.
        If its observations then differ, the record is discarded, and a fork starts from the reset state, marked
        `not_forked`.
        """
        shared = self.fork.turns if self.fork is not None else ()
        recorded = self.record.played(self.id) if self.record is not None else ()
        played = (*shared, *recorded)
        if not played:
            return ()
        if played[0].context.sequence == self.reading.seen.new and await self._led_through(played):
            self.hooks.costs += Costs(reused_tokens=sum(len(turn.context) + len(turn.action) for turn in shared))
            for turn in recorded:  # costs before the restart
                self.hooks.costs += Costs(count_sampled(turn.action), 0, len(turn.calls), 1)
            return played
        if self.record is not None:
            self.record.drop(self.id)
        if shared:
            self.marks.append("not_forked")
            self.fork = None
        await self._open()
        return ()

    async def _led_through(self, played: tuple[Turn, ...]) -> bool:
        """Bring the environment into the state after these turns; return whether that succeeded."""
        if stateless(self.environment):
            return True
        num_restored = 0
        if self.fork is not None and self.fork.snapshot is not None:
            restore: Any = self.environment.restore  # type: ignore[attr-defined]
            await self._at(Stage.OPEN, "its environment (restore)", restore, self.fork.snapshot)
            num_restored = len(self.fork.turns)
        for number in range(num_restored, len(played)):
            if self.fork is not None and number < len(self.fork.turns):  # a recorded turn counts once
                self.hooks.costs += Costs(environment_steps=1)
            step, message = self.environment.step, played[number].message
            answer: StepResult = await self._at(Stage.OPEN, "its environment (replay)", step, message)
            self.tools = answer.observation.tools or self.tools
            self.author, self.agent = answer.observation.author, answer.observation.agent
            messages = answer.observation.messages
            if answer.observation.conversation != self.reading.number:
                return False  # the episode holds several conversations
            so_far = replace(self._so_far(), turns=(*played[:number], replace(played[number], observation=messages)))
            for view in self.hooks.context_transforms:
                messages = view.observation(messages, so_far)
            if answer.ended is not None or answer.executed_action is not None or messages != played[number].observation:
                return False  # the observation differs from the history
        return True

    async def _act(self) -> tuple[Turn, bool]:
        """Sample an action and record the turn; return the turn, and whether no limit cut the action off."""
        number, context = len(self.turns), self.reading.seen
        prefix = self._action_prefix()
        moment = ActorInput(
            self.task,
            context,
            self.reading.conversation,
            self.tools,
            self.id,
            number,
            derive_seed(self.seed, "turn", number),
            self.greedy,
            prefix,
            find_sampled_spans(self.turns, context, prefix, self.reading.number),
        )
        began = time.perf_counter()
        owner = self.actor.owner if implements_protocol(self.actor, HasOwner) else "the actor"
        action: Action = await self._at(Stage.ACT, f"{owner} (turn {number + 1})", self.actor.act, moment)
        tokens = Tokens.concatenate([prefix, action.tokens]) if len(prefix) else action.tokens
        turn = Turn(
            context=Tokens.from_ids(context.new, self.author),
            action=tokens,
            message=action.message or self.chat.read(tokens.ids, self.tools, turn=number),
            opens_segment=context.opens_segment,
            training_context=self.reading.training_context,
            conversation=self.reading.number,
            agent=self.agent,
            generation_seconds=time.perf_counter() - began,
            queue_seconds=action.queue_seconds,
        )
        self.hooks.costs += Costs(sampled_tokens=count_sampled(action.tokens))
        self.turns.append(turn)
        self.closing = None
        return turn, action.complete

    def _action_prefix(self) -> Tokens:
        """Return the tokens that the next action starts with."""
        splice = self.fork.splice if self.fork is not None and len(self.turns) == len(self.fork.turns) else None
        return NOTHING if splice is None else Tokens.concatenate([splice.prefix, splice.inserted])

    async def _snap(self) -> None:
        """Store a snapshot of the environment, if a fork may start here."""
        if self.hooks.snapshots is not None and implements_protocol(self.environment, Snapshots):
            snapshot = await self._at(Stage.STEP, "its environment (snapshot)", self.environment.snapshot)
            self.hooks.snapshots[len(self.turns)] = snapshot
