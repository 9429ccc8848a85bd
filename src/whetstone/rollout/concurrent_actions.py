"""Actions of an episode whose agent sends requests of several conversations at once.

    request A  ── sampled ──────────────┐                      turns, in the order in which they finish:  B, A
    request B      ── sampled ──┐       │
                                answer B, answer A

The action of a request is sampled as soon as the request arrives, and is answered as soon as it is sampled.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from whetstone.chat import Message, ToolSpec
from whetstone.environments.protocol import AnswersConcurrently, Observation
from whetstone.rollout.protocol import Action, ActorInput
from whetstone.trajectory import Author, EndReason, Tokens, Turn

if TYPE_CHECKING:
    from whetstone.rollout.runner import EpisodeRun


@dataclass(frozen=True, slots=True)
class ActionRequest:
    """Everything that the sampling of one action needs, independent of the later state of the episode."""

    moment: ActorInput
    """Input of the actor."""
    conversation: int
    """Number of the conversation."""
    training_context: Tokens | None
    """Context that the action is trained on, if it differs from that of sampling."""
    author: Author
    """Author of the new messages of the context."""
    agent: str
    """Name of the acting agent."""
    observed: tuple[Message, ...] = ()
    """New messages of the context, which become the observation of the turn that is appended before."""


class ConcurrentActions:
    """Samples and answers the requests of an episode's agent concurrently. The runner creates one for each episode.

    Args:
        episode: Running episode; its reset has returned the first request.
        environment: Environment that runs the agent.
    """

    def __init__(self, episode: EpisodeRun, environment: AnswersConcurrently) -> None:
        self._episode, self._environment = episode, environment
        self._running: dict[int, tuple[ActionRequest, asyncio.Task[tuple[Action, float]]]] = {}
        """By conversation, in the order of arrival, requests whose actions are being sampled."""
        self._arrival: asyncio.Task[Observation | None] | None = None
        self._tools: dict[int, tuple[ToolSpec, ...]] = {}
        self._num_started = 0
        self.has_agent_ended = False
        """Whether the agent has ended, so that no request follows."""

    async def next_turn(self) -> tuple[Turn, EndReason | None]:
        """Wait for the next sampled action, append its turn, and answer its request.

        Requests that arrive meanwhile start to be sampled. If no other action is being sampled, the next request is
        awaited too, so that its messages are the observation of the turn.

        Returns:
            The turn, and the end reason or None.
        """
        episode = self._episode
        if not self._running:
            self._start(episode.turns[-1].observation if episode.turns else episode.opening)
        while not (finished := [request for request, task in self._running.values() if task.done()]):
            ended = await self._wait_for_events()
            if ended is not None and episode.turns:
                return episode.turns[-1], ended
        request = finished[0]
        _, task = self._running.pop(request.conversation)
        episode.context_builder.select_conversation(request.conversation)
        episode.show_observation(request.observed)
        turn, is_complete = episode.append_turn(request, task.result())
        if not is_complete:
            return turn, EndReason.MAX_TOKENS
        await episode.step_environment(self._environment.answer_request, request.conversation, turn.message)
        episode.context_builder.suspend_conversation(turn, branches=True)
        if self._running and not self.has_agent_ended:
            return turn, None
        began = time.perf_counter()
        ended = await self._wait_for_request()
        episode.turns[-1] = replace(episode.turns[-1], environment_seconds=time.perf_counter() - began)
        return episode.turns[-1], ended

    def cancel_sampling(self) -> None:
        """Cancel all actions that are being sampled; called at the end of the episode."""
        tasks: list[asyncio.Task[Any]] = [task for _, task in self._running.values()]
        for task in [*tasks, *([] if self._arrival is None else [self._arrival])]:
            task.cancel()
            task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        self._running, self._arrival = {}, None

    async def _wait_for_events(self) -> EndReason | None:
        """Wait until an action is sampled or a request arrives."""
        tasks: set[asyncio.Task[Any]] = {task for _, task in self._running.values()}
        if self._arrival is None and not self.has_agent_ended:
            self._arrival = asyncio.create_task(self._environment.next_request())
        if self._arrival is not None:
            tasks.add(self._arrival)
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if self._arrival is None or not self._arrival.done():
            return None
        arrived, self._arrival = self._arrival.result(), None
        return self._admit(arrived)

    async def _wait_for_request(self) -> EndReason | None:
        """Wait for the next request, when no action is being sampled; return the end reason if there is none."""
        if self.has_agent_ended:
            return EndReason.TERMINATED
        waiting = self._arrival or asyncio.create_task(self._environment.next_request())
        self._arrival = waiting
        arrived = await self._episode.step_environment(asyncio.shield, waiting)
        self._arrival = None
        return self._admit(arrived)

    def _admit(self, arrived: Observation | None) -> EndReason | None:
        """Start to sample the action of a request; return the end reason if the episode ends instead."""
        episode, builder = self._episode, self._episode.context_builder
        if arrived is None:
            self.has_agent_ended = True
            return EndReason.TERMINATED
        number = arrived.conversation
        self._tools[number] = arrived.tools or self._tools.get(number, ())
        episode.tools, episode.author, episode.agent = self._tools[number], arrived.author, arrived.agent
        observed = builder.continue_conversation(
            number, arrived.messages, arrived.tools, episode.episode_state(), arrived.branch
        )
        context, last = builder.next_context, episode.turns[-1].conversation if episode.turns else None
        if context.opens_segment and number != last and "rewritten" not in episode.marks:
            episode.marks.append("rewritten")
        if not self._running:
            episode.show_observation(observed)
            if number == last and not context.opens_segment:
                episode.closing = Tokens.from_ids(context.new, arrived.author)
        if len(context.ids) >= episode.limits.context_length:
            return EndReason.CONTEXT_FULL
        self._start(observed)
        return None

    def _start(self, observed: tuple[Message, ...]) -> None:
        """Start to sample the action of the current conversation."""
        episode = self._episode
        number = max(self._num_started, len(episode.turns))
        request = replace(episode.prepare_action(number), observed=observed)
        episode.context_builder.begin_sampling()
        self._num_started = number + 1
        self._running[request.conversation] = (request, asyncio.create_task(episode.sample_action(request)))
