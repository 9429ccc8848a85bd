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
from enum import Enum, auto
from typing import Any, cast

from whetstone.cancellation import is_cancellation_requested
from whetstone.capabilities import implements_protocol
from whetstone.chat import Chat, Message, ToolSpec, user
from whetstone.environments.game_tasks import command_to_message
from whetstone.environments.protocol import (
    AnswersConcurrently,
    Environment,
    HasAdmissibleActions,
    Observation,
    SeatRequest,
    Snapshots,
    StepResult,
    TakesSeat,
)
from whetstone.errors import EpisodeError, InfrastructureError, PromptTooLong
from whetstone.rollout.concurrent_actions import ActionRequest, ConcurrentActions
from whetstone.rollout.context_builder import ContextBuilder
from whetstone.rollout.episode_inputs import EpisodeHooks, EpisodeLimits, Fork
from whetstone.rollout.protocol import (
    CONTINUED,
    NOTHING,
    Action,
    ActionMask,
    Actor,
    ActorInput,
    AllowedActions,
    Ask,
    EpisodeKey,
    EpisodeRecord,
    EpisodeState,
    HasOwner,
    HistoryChange,
    PatchTurn,
    RestartContext,
    Rewrite,
    SupportsHealthCheck,
)
from whetstone.rollout.sampled_spans import count_sampled, find_sampled_spans
from whetstone.seeding import derive_random, derive_seed
from whetstone.strict_json import to_plain_values
from whetstone.tools.protocol import GivesVerdict, ToolUnavailable, check_verdict, find_provenance, is_stateless
from whetstone.tools.thread_runner import call_user_function
from whetstone.trajectory import Author, Costs, EndReason, Task, Tokens, Trajectory, Turn
from whetstone.user_code import describe_exception
from whetstone.waiting import (
    BACKEND,
    DeadlinePassed,
    close_within,
    collect_waits,
    finish_within,
    limit_duration,
    waiting_for,
)

_SPARE_SECONDS = 15.0
"""Seconds after its deadline that an episode may take for the health check of its engine, and to end."""
_VERDICT = "its environment (verdict)"


class EpisodeStage(Enum):
    """Stage of an episode: reset, action, environment step or verdict. A passed deadline is attributed by the stage."""

    OPEN = auto()
    ACT = auto()
    STEP = auto()
    VERDICT = auto()


class TurnTooLong(Exception):
    """Error: a turn took longer than its deadline."""

    def __init__(self, passed: DeadlinePassed, number: int) -> None:
        super().__init__(str(passed))
        self.passed, self.number = passed, number


async def attribute_deadline(
    late: DeadlinePassed, stage: EpisodeStage, actor: Actor, *, turns: int, turn: int = 0
) -> tuple[EndReason, str]:
    """Decide whether the policy or the infrastructure used up the time of a deadline.

    The infrastructure is to blame before the first turn, in the verdict, while a call waits for the rate limit or the
    next attempt of a tool, and if the engine fails its health check.

    Args:
        late: The passed deadline.
        stage: Stage of the episode.
        actor: Actor of the episode.
        turns: Number of turns so far.
        turn: Number of the turn whose deadline passed, from 1; 0: the deadline of the episode.

    Returns:
        (end reason `TIMEOUT` or `INFRASTRUCTURE`, text of the error).
    """
    is_infrastructure = not turns or stage is EpisodeStage.VERDICT or BACKEND in late.owner
    if not is_infrastructure and stage is EpisodeStage.ACT and implements_protocol(actor, SupportsHealthCheck):
        is_infrastructure = not await actor.is_answering()
    if is_infrastructure:
        return EndReason.INFRASTRUCTURE, f"{late.owner} did not answer within {late.seconds:g} s"
    return EndReason.TIMEOUT, f"{f'turn {turn} ' if turn else ''}not finished after {late.seconds:g} s"


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
    """Play one episode and close its environment. Failures inside the episode become its end reason.

    Args:
        task: Task of the episode.
        environment: New environment; it is closed at the end.
        actor: Produces the actions.
        chat: Renders messages to tokens and parses tool calls.
        limits: Limits of turns, context and time.
        id: Id of the trajectory; the engine stores its KV cache under this id until the end.
        seed: Determines every random choice of the episode.
        record: Receives each turn; if it has turns of this episode, the episode resumes after them.
        fork: Turns of another episode in the same environment that this one starts with; None: a new episode.
        greedy: Whether the actor decodes greedily.
        hooks: Hooks of the method; None: no hooks.
        seat: Seat in a game of several players; None: the policy is the only player.

    Raises:
        PromptTooLong: If the prompt leaves no room for a response. No sampling could help, so it is an error of the
            task.
        asyncio.CancelledError: If the caller cancels the episode; its environment is closed, too.
    """
    hooks = hooks if hooks is not None else EpisodeHooks(EpisodeKey(task, seed))
    episode = EpisodeRun(task, environment, actor, chat, limits, id, seed, record, fork, greedy, hooks, seat)
    with collect_waits():
        try:
            # one task: an environment may enter a context in `reset` that it must leave in the same task
            seconds = 2 * limits.timeout_seconds + limits.close_seconds + _SPARE_SECONDS  # the turns, and the verdict
            return await finish_within(
                seconds, episode.run_to_end(), owner="the episode", patience=limits.close_seconds + 1
            )
        except DeadlinePassed as late:  # the episode ignores its cancellation
            episode.is_over = True
            return episode.build_trajectory(
                *await attribute_deadline(late, episode.stage, episode.actor, turns=len(episode.turns))
            )
        except asyncio.CancelledError:
            if is_cancellation_requested():
                raise
            return episode.build_trajectory(
                EndReason.ERROR, "CancelledError: the environment cancelled its own episode"
            )


class EpisodeRun:
    """State of a running episode; its turns stay readable when `_turns` is cancelled."""

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
        self.context_builder = ContextBuilder(
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
        self.stage = EpisodeStage.OPEN
        self.started = time.perf_counter()
        self.is_over = False
        """Whether the trajectory is complete; a coroutine that ignored its cancellation then does nothing more."""
        self.engine_names = {id}
        """Names under which the engine stores KV caches: one per conversation if actions are sampled concurrently."""
        # a rewrite of the context, or a wrapper of the environment that overrides `step`, sees one action at a time
        is_concurrent = implements_protocol(type(environment), AnswersConcurrently) and not hooks.rewrites
        self.concurrent = ConcurrentActions(self, cast(AnswersConcurrently, environment)) if is_concurrent else None

    async def run_to_end(self) -> Trajectory:
        """Play the turns and query the verdict, each within the deadline, and close the environment."""
        error: str | None = None
        unclosed = ""
        try:
            async with limit_duration(self.limits.timeout_seconds, owner="the episode"):
                ended = await self._turns()
            # a separate deadline: a policy cannot discard an episode by using up the time of its grading
            async with limit_duration(self.limits.timeout_seconds, owner=_VERDICT):
                await self._query_verdict()
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
            if self.concurrent is not None:
                self.concurrent.cancel_sampling()
            for name in sorted(self.engine_names):
                self.actor.leave(name)
            self.hooks.siblings.running.pop(self.id, None)
            closing = call_user_function(self.environment.close)
            unclosed = await close_within(self.limits.close_seconds, closing, owner="its environment (close)")
        return self.build_trajectory(ended, error, unclosed)

    def build_trajectory(self, ended: EndReason, error: str | None, unclosed: str = "") -> Trajectory:
        """Build the trajectory from the turns so far.

        Args:
            ended: End reason.
            error: Text of the error; None without one.
            unclosed: Text of the error if the environment did not close.
        """
        marks = {"view_dropped": self.context_builder.dropped, "not_closed": unclosed}
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
            off_policy=self.context_builder.off_policy,
            seconds=time.perf_counter() - self.started,
            closing=self.closing if ended.cut_short else None,
            provenance=self.provenance,
        )

    async def _query_verdict(self) -> None:
        """Store the verdict of an environment that gives one."""
        if implements_protocol(self.environment, GivesVerdict):
            verdict = await self.at_stage(EpisodeStage.VERDICT, _VERDICT, self.environment.verdict)
            self.final = to_plain_values(check_verdict(verdict))  # it is kept with the trajectory

    async def at_stage(
        self, stage: EpisodeStage, owner: str, call: Callable[..., Any], *arguments: Any, **options: Any
    ) -> Any:
        """Call a function of the environment or the actor; `owner` names the component in messages about waits."""
        if self.is_over:
            raise asyncio.CancelledError
        self.stage = stage
        with waiting_for(owner):
            return await call_user_function(call, *arguments, **options)

    def _is_stopped(self) -> bool:
        """Return whether a stop ends the episode; a control episode continues, and gets a mark at the first stop."""
        for name, stop in self.hooks.stops:
            if stop(self.episode_state(), self.hooks.siblings):
                if derive_random(self.seed, "early stopping control").random() >= self.hooks.stop_control_fraction:
                    self.marks.append(name)
                    return True
                if not any(mark.startswith(f"{name}{CONTINUED}") for mark in self.marks):
                    self.marks.append(f"{name}{CONTINUED}{len(self.turns)}")
        return False

    async def _turns(self) -> EndReason:
        await self._open()
        for played in await self._played_before():
            self.turns.append(played)
            self.context_builder.restore_turn(played)
        while True:
            self.hooks.siblings.running[self.id] = len(self.turns)
            if (
                self.turns
                and self.concurrent is None
                and len(self.context_builder.next_context.ids) + len(self._action_prefix())
                >= self.limits.context_length
            ):
                return EndReason.CONTEXT_FULL
            turn, ended = await self._next_turn()
            if ended is not None:
                return ended
            if self.asked is None:
                await self._rewritten(self.hooks.rewrites)
                if self._is_stopped():
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

        Returns:
            The turn, and the end reason or None.

        Raises:
            TurnTooLong: If the deadline passes.
        """
        number = len(self.turns) + 1
        try:
            async with limit_duration(self.limits.turn_timeout_seconds, owner="the turn"):
                return await self._act_and_step()
        except DeadlinePassed as passed:
            raise TurnTooLong(passed, number) from None

    async def _act_and_step(self) -> tuple[Turn, EndReason | None]:
        if self.concurrent is not None:
            return await self.concurrent.next_turn()
        turn, is_complete = await self._act()
        if not is_complete:
            return turn, EndReason.MAX_TOKENS
        return turn, await self._step(turn) if self.asked is None else None

    async def _open(self) -> None:
        if self.seat is not None and implements_protocol(self.environment, TakesSeat):
            self.environment.take_seat(self.seat)
        reset = self.environment.reset
        first: Observation = await self.at_stage(
            EpisodeStage.OPEN, "its environment (reset)", reset, self.task, seed=self.environment_seed
        )
        if not isinstance(first, Observation):
            raise TypeError(f"reset() returned {repr(first)[:60]}, not an Observation")
        self.author, self.agent = first.author, first.agent
        self.begins, self.tools, self.declared = first.messages, first.tools, first.declared
        self.opening = self.context_builder.open_context(first.messages, first.tools, self.episode_state())

    async def _step(self, turn: Turn) -> EndReason | None:
        """Step the environment with an action, and build the next context.

        Returns:
            The end reason, or None if the episode continues.
        """
        began = time.perf_counter()
        self.hooks.costs += Costs(environment_steps=1)
        owner = ", ".join(sorted({call.name for call in turn.message.tool_calls})) or "its environment"
        result: StepResult = await self.at_stage(EpisodeStage.STEP, owner, self.environment.step, turn.message)
        if not isinstance(result, StepResult):
            raise TypeError(f"step() returned {repr(result)[:60]}, not a StepResult")
        turn = self.turns[-1] = replace(
            turn,
            observation=result.observation.messages,
            reward=result.reward,
            calls=result.calls,
            environment_seconds=time.perf_counter() - began,
        )
        self.hooks.costs += Costs(tool_calls=len(result.calls))
        seen = result.observation
        has_switched = seen.conversation != self.context_builder.conversation_number
        self.tools = seen.tools if has_switched else seen.tools or self.tools
        self.author, self.agent = seen.author, seen.agent
        if result.ended is not None and not result.ended.cut_short:
            return result.ended
        if result.executed_action is not None:
            self.context_builder.replace_turn(
                turn, self.chat.write(result.executed_action, self.tools), result.executed_action
            )
            self.marks.append("patched")
            return result.ended
        transformed = (
            self._switch(turn, seen) if has_switched else self.context_builder.add_turn(turn, self.episode_state())
        )
        if transformed != turn.observation:
            self.turns[-1] = replace(turn, observation=transformed)
        if not has_switched and not self.context_builder.next_context.opens_segment:
            self.closing = Tokens.from_ids(self.context_builder.next_context.new, self.author)
        return result.ended

    async def step_environment(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function of the environment as a part of a step."""
        return await self.at_stage(EpisodeStage.STEP, "its environment", call, *arguments)

    def show_observation(self, messages: tuple[Message, ...]) -> None:
        """Store messages as the observation of the last turn, or as the initial messages before the first turn."""
        if self.turns:
            self.turns[-1] = replace(self.turns[-1], observation=messages)
        else:
            self.opening = messages

    def _switch(self, turn: Turn, seen: Observation) -> tuple[Message, ...]:
        """Continue in another conversation, and return its new messages as the policy reads them."""
        if self.hooks.rewrites:
            raise EpisodeError(
                "the agent has several conversations, and a context rewrite of the recipe supports one; "
                "remove `rollout.context_rewrites`, or keep the agent's messages in one conversation"
            )
        transformed = self.context_builder.switch_context(
            turn, seen.conversation, seen.messages, self.tools, self.episode_state()
        )
        if self.context_builder.next_context.opens_segment and "rewritten" not in self.marks:
            self.marks.append("rewritten")
        return transformed

    async def _answered(self, turn: Turn) -> None:
        """Process the policy's answer to a question of a context rewrite."""
        assert self.asked is not None
        self.turns[-1] = replace(turn, aside=True)
        self.context_builder.restore_turn(self.turns[-1])
        rewrite, self.asked = self.asked, None
        await self._rewritten((rewrite,))

    async def _rewritten(self, rewrites: Sequence[Rewrite]) -> None:
        """Apply the first change that a context rewrite returns."""
        for rewrite in rewrites:
            with waiting_for("a context rewrite"):
                change = await rewrite(self.episode_state())
            if change is not None:
                self._change(change, rewrite)
                return

    def _change(self, change: HistoryChange, rewrite: Rewrite) -> None:
        self.closing = None
        if isinstance(change, RestartContext):
            self.context_builder.replace_context(change.messages, self.tools, self.episode_state())
        elif isinstance(change, PatchTurn):
            self.context_builder.rewind_to(change.turn)
            ids = self.chat.write(change.message, self.tools)
            repaired = Turn(
                context=Tokens.from_ids(self.context_builder.next_context.new, Author.ENVIRONMENT),
                action=Tokens.from_ids(ids, Author.CORRECTED),
                message=self.chat.read(ids, self.tools, turn=change.turn),
                observation=change.observation,
                calls=change.calls,
                opens_segment=self.context_builder.next_context.opens_segment,
                training_context=self.context_builder.training_context,
            )
            self.turns[change.turn :] = [repaired]
            self.context_builder.restore_turn(repaired)
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
            self.context_builder.rewind_to(len(self.turns) - 1)
            self.context_builder.restore_turn(last)
        else:
            self.context_builder.replace_context((*self.begins, question), self.tools, self.episode_state())
        self.asked = rewrite

    def episode_state(self) -> EpisodeState:
        """Return the state of the episode that hooks receive."""
        return EpisodeState(
            self.hooks.episode_key,
            self.begins,
            tuple(self.turns),
            self.tools,
            len(self.context_builder.next_context.ids) if self.context_builder.has_context else 0,
            self.limits.context_length,
            self.limits.max_turns,
        )

    async def _played_before(self) -> tuple[Turn, ...]:
        """Return shared and recorded turns, with the environment in the state after them.

        A stateless environment needs no replay, and one with snapshots is restored. In any other the same actions are
        played again. If the observations then differ, the record is discarded, and a fork starts from the reset state,
        marked `not_forked`.
        """
        shared = self.fork.turns if self.fork is not None else ()
        recorded = self.record.played(self.id) if self.record is not None else ()
        played = (*shared, *recorded)
        if not played:
            return ()
        if played[0].context.sequence == self.context_builder.next_context.new and await self._led_through(played):
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
        if is_stateless(self.environment):
            return True
        num_restored = 0
        if self.fork is not None and self.fork.snapshot is not None:
            restore: Any = self.environment.restore  # type: ignore[attr-defined]
            await self.at_stage(EpisodeStage.OPEN, "its environment (restore)", restore, self.fork.snapshot)
            num_restored = len(self.fork.turns)
        for number in range(num_restored, len(played)):
            if self.fork is not None and number < len(self.fork.turns):  # a recorded turn counts once
                self.hooks.costs += Costs(environment_steps=1)
            step, message = self.environment.step, played[number].message
            answer: StepResult = await self.at_stage(EpisodeStage.OPEN, "its environment (replay)", step, message)
            self.tools = answer.observation.tools or self.tools
            self.author, self.agent = answer.observation.author, answer.observation.agent
            messages = answer.observation.messages
            if answer.observation.conversation != self.context_builder.conversation_number:
                return False  # the episode holds several conversations
            state = replace(
                self.episode_state(), turns=(*played[:number], replace(played[number], observation=messages))
            )
            for view in self.hooks.context_transforms:
                messages = view.observation(messages, state)
            if answer.ended is not None or answer.executed_action is not None or messages != played[number].observation:
                return False  # the observation differs from the history
        return True

    async def _act(self) -> tuple[Turn, bool]:
        """Sample an action and append the turn.

        Returns:
            The turn, and whether no limit truncated the action.
        """
        request = self.prepare_action(len(self.turns))
        return self.append_turn(request, await self.sample_action(request))

    def prepare_action(self, number: int) -> ActionRequest:
        """Return all that the sampling of the next action needs: its context, tools and seed.

        Args:
            number: Number of earlier actions of the episode.
        """
        builder, prefix = self.context_builder, self._action_prefix() if number == len(self.turns) else NOTHING
        context, conversation = builder.next_context, builder.conversation_number
        name = f"{self.id}/{conversation}" if conversation and self.concurrent is not None else self.id
        self.engine_names.add(name)
        moment = ActorInput(
            self.task,
            context,
            builder.conversation if self.concurrent is None else tuple(builder.conversation),
            self.tools,
            name,
            number,
            derive_seed(self.seed, "turn", number),
            self.greedy,
            prefix,
            find_sampled_spans(self.turns, context, prefix, conversation),
        )
        return ActionRequest(moment, conversation, builder.training_context, self.author, self.agent)

    async def sample_action(self, request: ActionRequest) -> tuple[Action, float]:
        """Sample the action of a request; return it with its seconds."""
        began = time.perf_counter()
        owner = self.actor.owner if implements_protocol(self.actor, HasOwner) else "the actor"
        moment = request.moment
        if self.hooks.action_mask is not None and self.asked is None and not len(moment.prefix):
            moment = replace(moment, allowed=await self._list_allowed(self.hooks.action_mask, moment.tools))
        action: Action = await self.at_stage(
            EpisodeStage.ACT, f"{owner} (turn {moment.turn + 1})", self.actor.act, moment
        )
        return action, time.perf_counter() - began

    async def _list_allowed(self, mask: ActionMask, tools: Sequence[ToolSpec]) -> AllowedActions | None:
        """Return the actions that the action mask allows in the next turn; None: the turn is not masked."""

        async def admissible() -> Sequence[str]:
            if not implements_protocol(self.environment, HasAdmissibleActions):
                return ()
            call = self.environment.admissible
            listed: Sequence[str] = await self.at_stage(EpisodeStage.STEP, "its environment (admissible)", call)
            return listed

        actions = await mask(self.episode_state(), admissible)
        if actions is None:
            return None
        messages = [each if isinstance(each, Message) else command_to_message(each, tools) for each in actions]
        written = dict.fromkeys(tuple(self.chat.write(message, tools)) for message in messages)
        return AllowedActions(tuple(written), mask.trained)

    def append_turn(self, request: ActionRequest, sampled: tuple[Action, float]) -> tuple[Turn, bool]:
        """Append the turn of a sampled action.

        Returns:
            The turn, and whether no limit truncated the action.
        """
        (action, seconds), moment = sampled, request.moment
        tokens = Tokens.concatenate([moment.prefix, action.tokens]) if len(moment.prefix) else action.tokens
        turn = Turn(
            context=Tokens.from_ids(moment.context.new, request.author),
            action=tokens,
            message=action.message or self.chat.read(tokens.ids, moment.tools, turn=moment.turn),
            opens_segment=moment.context.opens_segment,
            training_context=request.training_context,
            conversation=request.conversation,
            agent=request.agent,
            generation_seconds=seconds,
            queue_seconds=action.queue_seconds,
        )
        self.hooks.costs += Costs(sampled_tokens=count_sampled(action.tokens))
        self.turns.append(turn)
        self.closing = None
        return turn, action.complete

    def _action_prefix(self) -> Tokens:
        """Return the tokens with which the next action starts; empty unless a fork splices tokens."""
        splice = self.fork.splice if self.fork is not None and len(self.turns) == len(self.fork.turns) else None
        return NOTHING if splice is None else Tokens.concatenate([splice.prefix, splice.inserted])

    async def _snap(self) -> None:
        """Store a snapshot of the environment after the last turn, if a fork may start there."""
        if self.hooks.snapshots is not None and implements_protocol(self.environment, Snapshots):
            snapshot = await self.at_stage(EpisodeStage.STEP, "its environment (snapshot)", self.environment.snapshot)
            self.hooks.snapshots[len(self.turns)] = snapshot
