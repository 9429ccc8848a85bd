"""Discrete-event simulation of a run: its speed, waits and staleness, from rates only.

    admission → slots → reset → (engine → tool) × turns → reward → the deadline rule → update → transfer → admission

Admission and the choice of an update's groups use the code of the real loop (`rollout/batch_scheduling.py`). Engines,
tools, rewards and the learner are represented only by their rates. A scenario always gives the same run: lengths and
latencies of a group are sampled with the scenario's seed and the group's number.

Note:
    A scheduled event can be void when its time is reached. Code that changes a condition of an event increments the
    counter that the event was scheduled with. Events of an episode carry its epoch, which a restart increments.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from whetstone.rollout.batch_scheduling import next_batch
from whetstone.scaling.simulation_measures import Measures
from whetstone.scaling.simulation_replica import SimulatedReplica, SimulatedRequest
from whetstone.scaling.simulation_scenario import Scenario, SimulationSummary

_FEW = 0.1
"""Fraction of an update's episodes: fewer running episodes are stragglers."""
_HOUR = 3600.0


State = Literal["engine", "tools", "tool_workers", "rewards", "reward_workers", "places", "failures"]
"""State of a simulated episode: the component that it uses or waits for."""


@dataclass(slots=True)
class SimulatedEpisode:
    """Simulated episode with its sampled lengths and latencies."""

    number: int
    group: int
    turns: int
    prompt: float
    sampled_tokens: Any  # [turns] tokens sampled
    observation_tokens: Any  # [turns] tokens of observations
    tool_seconds: Any  # [turns]
    reset_seconds: float
    reward_seconds: float
    state: State = "places"
    turn: int = 0
    context: float = 0.0
    versions: float = 0.0
    """Sum over sampled tokens of the version that sampled them."""
    replica: int = -1
    """Index of the episode's replica; −1: none yet."""
    keys: int = -1
    """Counter value of the replica's KV cache that contains the episode's prefix."""
    node: int = 0
    """Index of the node of its environment."""
    epoch: int = 0
    """Counter that is incremented when the episode restarts, which voids its scheduled events."""


@dataclass(slots=True)
class Workers:
    """Pool of simulated workers, limited or unlimited, with a queue of episodes."""

    count: int | None
    """Number of workers; None: unlimited."""
    busy: int = 0
    line: deque[tuple[SimulatedEpisode, int]] = field(default_factory=deque)
    """Queued episodes with their epochs."""

    def take(self, episode: SimulatedEpisode) -> bool:
        """Assign a free worker to the episode and return True; without one, queue the episode and return False."""
        if self.count is not None and self.busy >= self.count:
            self.line.append((episode, episode.epoch))
            return False
        self.busy += 1
        return True

    def give_back(self) -> SimulatedEpisode | None:
        """Free a worker; return the next queued episode, to which the worker is assigned, or None."""
        self.busy -= 1
        while self.line:
            episode, epoch = self.line.popleft()
            if episode.epoch == epoch:
                self.busy += 1
                return episode
        return None


def simulate_run(scenario: Scenario) -> SimulationSummary:
    """Simulate a run of a scenario and return its throughput, utilization, waits and staleness."""
    return _Run(scenario).summary()


class _Run:
    """State of a simulated run, and the handlers of its events."""

    def __init__(self, scenario: Scenario) -> None:
        self.of, self.now = scenario, 0.0
        self.events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self.serial = 0
        self.replicas = [SimulatedReplica(scenario.engine) for _ in range(scenario.engine.replicas)]
        self.load_heap = [(0, number) for number in range(len(self.replicas))]
        self.orphans: list[SimulatedRequest] = []
        self.tools, self.rewards = Workers(scenario.environment_workers), Workers(scenario.reward_workers)
        self.episodes: dict[int, SimulatedEpisode] = {}
        """Episodes that run or wait for a slot."""
        self.queued: deque[SimulatedEpisode] = deque()
        self.placed = 0
        self.version = self.next_group = self.next_episode = 0
        self.live: dict[int, int] = {}
        self.left: dict[int, int] = {}
        """Number of unfinished episodes of a group."""
        self.drawn: dict[int, list[tuple[float, float]]] = {}
        """(tokens, tokens times version) of the finished episodes of a group."""
        self.read: dict[int, float] = {}
        """Tokens of a group that the learner computes."""
        self.finished: set[int] = set()
        self.consumed: list[int] = []
        self.phase: Literal["waiting", "learning", "between", "transfer", "down"] = "waiting"
        self.learning = 0
        """Incremented when the running update is void."""
        self.settling = False
        self.taking: set[int] = set()
        """Replicas that have not loaded the new weights."""
        self.few = int(_FEW * scenario.groups_per_update * scenario.group_size)
        self.measures = Measures(scenario)
        self.luck = np.random.default_rng([scenario.seed, 1])
        self.counts: Counter[str] = Counter()

    def summary(self) -> SimulationSummary:
        """Simulate the run to its end and return the summary."""
        self._expect_failures()
        self._fill()
        while self.version < self.of.updates:
            if not self.events:
                raise RuntimeError("the simulated run is blocked: no event is scheduled")
            when, _, act, about = heapq.heappop(self.events)
            self._pass_to(when)
            act(*about)
        consumed = self.version * self.of.groups_per_update
        return self.measures.summary(
            started=consumed + len(self.live), consumed=consumed, alive=len(self.live), counts=self.counts
        )

    def _pass_to(self, when: float) -> None:
        span = when - self.now
        if span > 0:
            self.measures.pass_by(span, self.phase, self.placed, few=len(self.episodes) <= self.few)
        self.now = when

    def _in(self, seconds: float, act: Callable[..., None], *about: Any) -> None:
        self.serial += 1
        heapq.heappush(self.events, (self.now + seconds, self.serial, act, about))

    # ------------------------------------------------------------ groups and places

    def _fill(self) -> None:
        """Start queued episodes in free slots, and admit groups as far as the version allows."""
        of = self.of
        while True:
            while self.queued and self.placed < of.max_in_flight:
                self._begin(self.queued.popleft())
            allowed = (of.admit_ahead + self.version + 1) * of.groups_per_update
            started = self.version * of.groups_per_update + len(self.live)
            if self.queued or self.placed >= of.max_in_flight or started >= allowed:
                return
            self._admit()

    def _admit(self) -> None:
        of, number = self.of, self.next_group
        self.next_group += 1
        self.live[number], self.left[number], self.drawn[number], self.read[number] = (
            self.version,
            of.group_size,
            [],
            0.0,
        )
        shape, numbers = of.episode, np.random.default_rng([of.seed, 0, number])
        size = of.group_size
        turns = np.maximum(1, np.rint(shape.turns.draw(numbers, size))).astype(int)
        prompt = float(shape.prompt_tokens.draw(numbers, 1)[0])  # one task, one prompt
        resets, rewards = shape.reset_seconds.draw(numbers, size), shape.reward_seconds.draw(numbers, size)
        for k in range(size):
            count = int(turns[k])
            tools = shape.tool_seconds.draw(numbers, count)
            tools[-1] = shape.last_tool_seconds.draw(numbers, 1)[0] if shape.last_tool_seconds is not None else 0.0
            episode = SimulatedEpisode(
                self.next_episode, number, count, prompt,
                np.maximum(1, np.rint(shape.turn_tokens.draw(numbers, count))),
                np.rint(shape.observation_tokens.draw(numbers, count)),
                tools, float(resets[k]), float(rewards[k]), node=self.next_episode % max(1, of.failures.nodes),
            )  # fmt: skip
            self.next_episode += 1
            self.episodes[episode.number] = episode
            self.measures.count("places", +1)
            self.queued.append(episode)

    def _begin(self, episode: SimulatedEpisode) -> None:
        """Start an episode in a free slot."""
        self.placed += 1
        self._reset(episode)

    def _reset(self, episode: SimulatedEpisode) -> None:
        episode.turn, episode.context, episode.versions = 0, 0.0, 0.0
        self._become(episode, "tools")
        self._in(episode.reset_seconds, self._draw, episode, episode.epoch, episode.prompt)

    def _become(self, episode: SimulatedEpisode, state: State) -> None:
        self.measures.count(episode.state, -1)
        self.measures.count(state, +1)
        episode.state = state

    # ------------------------------------------------------------ an episode

    def _draw(self, episode: SimulatedEpisode, epoch: int, read: float) -> None:
        """Send a turn to an engine, which has to prefill `read` tokens first."""
        if epoch != episode.epoch:
            return
        episode.context += read
        request = SimulatedRequest(episode.number, float(episode.sampled_tokens[episode.turn]), read, episode.context)
        self._become(episode, "engine")
        self._send(request, episode)

    def _send(self, request: SimulatedRequest, episode: SimulatedEpisode) -> None:
        number = episode.replica
        if number < 0 or not self.replicas[number].alive:
            least_loaded = self._least_loaded()
            if least_loaded is None:
                self._become(episode, "failures")
                self.orphans.append(request)
                return
            if number >= 0:
                self.replicas[number].num_assigned -= 1  # it is in no list: it is dead
            number, episode.keys = least_loaded, -1
            episode.replica = number
            self._hold(number, +1)
        replica = self.replicas[number]
        if episode.keys != replica.keys:
            request.read, episode.keys = request.context, replica.keys
        replica.catch_up(self.now)
        replica.ask(request)
        self._expect(number)

    def _least_loaded(self) -> int | None:
        while self.load_heap:
            assigned, number = self.load_heap[0]
            if self.replicas[number].alive and self.replicas[number].num_assigned == assigned:
                return number
            heapq.heappop(self.load_heap)
        return None

    def _hold(self, number: int, more: int) -> None:
        replica = self.replicas[number]
        replica.catch_up(self.now)
        replica.num_assigned += more
        heapq.heappush(self.load_heap, (replica.num_assigned, number))
        if self.of.engine.step_seconds_per_row:  # it is quicker or slower from here on
            self._expect(number)

    def _expect(self, number: int) -> None:
        """Schedule the next departure or entry of a replica."""
        replica = self.replicas[number]
        replica.scheduled += 1
        end = replica.next_change()
        if end is not None:
            self._in(max(0.0, end - self.now), self._finish_requests, number, replica.scheduled)

    def _finish_requests(self, number: int, scheduled: int) -> None:
        replica = self.replicas[number]
        if scheduled != replica.scheduled:
            return
        replica.catch_up(self.now)
        for request in replica.finished():
            self._finish_turn(self.episodes[request.episode])
        if replica.draining and not replica.running:
            self._take(number)
        self._expect(number)

    def _finish_turn(self, episode: SimulatedEpisode) -> None:
        """End the sampling of a turn, and start its tool call."""
        tokens = float(episode.sampled_tokens[episode.turn])
        episode.context += tokens
        episode.versions += tokens * self.version
        seconds = float(episode.tool_seconds[episode.turn])
        if episode.turn == episode.turns - 1 and seconds == 0:
            self._leave(episode)
        elif self.tools.take(episode):
            self._call(episode)
        else:
            self._become(episode, "tool_workers")

    def _call(self, episode: SimulatedEpisode) -> None:
        self._become(episode, "tools")
        self.measures.calls(+1)
        self._in(float(episode.tool_seconds[episode.turn]), self._answered, episode, episode.epoch)

    def _answered(self, episode: SimulatedEpisode, epoch: int) -> None:
        self.measures.calls(-1)
        following = self.tools.give_back()
        if following is not None:
            self._call(following)
        if epoch != episode.epoch:
            return
        episode.turn += 1
        if episode.turn == episode.turns:
            self._leave(episode)
        else:
            self._draw(episode, epoch, float(episode.observation_tokens[episode.turn - 1]))

    def _leave(self, episode: SimulatedEpisode) -> None:
        """Free the slot of a finished episode, and start its reward."""
        self.placed -= 1
        self._hold(episode.replica, -1)
        if self.rewards.take(episode):
            self._judge(episode)
        else:
            self._become(episode, "reward_workers")
        self._fill()

    def _judge(self, episode: SimulatedEpisode) -> None:
        self._become(episode, "rewards")
        self._in(episode.reward_seconds, self._judged, episode)

    def _judged(self, episode: SimulatedEpisode) -> None:
        following = self.rewards.give_back()
        if following is not None:
            self._judge(following)
        self.measures.count("rewards", -1)
        del self.episodes[episode.number]
        group = episode.group
        self.drawn[group].append((float(episode.sampled_tokens.sum()), episode.versions))
        self.read[group] += episode.context
        self.left[group] -= 1
        if self.left[group] == 0:
            del self.left[group]
            self.finished.add(group)
            self._look()

    # ------------------------------------------------------------ the learner

    def _look(self) -> None:
        """Start an update, or the transfer after one, if the required groups have finished."""
        if self.phase == "waiting" and self.settling:
            self._settle()
        elif self.phase == "waiting" and len(self.finished) >= self.of.groups_per_update:
            numbers = self._chosen()
            if numbers is not None:
                self.consumed = numbers
                self._learn()

    def _chosen(self) -> list[int] | None:
        size = self.of.groups_per_update
        if self.of.by_recipe:
            oldest = sorted(self.live)[:size]
            return oldest if self.finished.issuperset(oldest) else None
        running = {number: began for number, began in self.live.items() if number not in self.finished}
        return next_batch(
            {number: self.live[number] for number in self.finished},
            running,
            version=self.version,
            groups_per_update=size,
            max_staleness=self.of.max_staleness,
        )

    def _learn(self) -> None:
        self.phase = "learning"
        if self.of.take_turns:
            self._pause(range(len(self.replicas)), +1)
        rates = self.of.learner
        seconds = rates.seconds + rates.seconds_per_token * sum(self.read[number] for number in self.consumed)
        self._in(seconds, self._learned, self.learning)

    def _learned(self, learning: int) -> None:
        if learning != self.learning:
            return
        if self.of.take_turns:
            self._pause(range(len(self.replicas)), -1)
        for number in self.consumed:
            tokens = self.drawn.pop(number)
            self.measures.consume(self.version, self.live[number], tokens)
            del self.read[number]
        self.phase = "between"
        self._in(self.of.learner.between_seconds, self._publish)

    def _publish(self) -> None:
        """Start the weight transfer, unless groups have to finish first."""
        self.phase, self.settling = "waiting", True
        self._settle()

    def _settle(self) -> None:
        allowed = self.of.admit_ahead * self.of.groups_per_update
        waiting = len(self.live) - len(self.consumed)
        if self.of.by_recipe and (waiting < allowed or not self.finished.issuperset(self.live)):
            return
        self.settling, self.phase = False, "transfer"
        self._in(self.of.learner.prepare_seconds, self._transfer)

    def _transfer(self) -> None:
        self.taking = {number for number, replica in enumerate(self.replicas) if replica.alive}
        for number in list(self.taking):
            replica = self.replicas[number]
            replica.catch_up(self.now)
            if self.of.in_flight == "drain" and replica.running:
                replica.draining = True
            else:
                self._take(number)
        if not self.taking:
            self._in(0.0, self._advance)

    def _take(self, number: int) -> None:
        """Load the new weights into a replica, which samples nothing meanwhile."""
        replica = self.replicas[number]
        replica.draining = False
        self._pause([number], +1)
        if self.of.in_flight != "continue":
            replica.keys += 1
            for request in replica.read_again():
                self.episodes[request.episode].keys = replica.keys
        self._in(self.of.learner.transfer_seconds, self._taken, number)

    def _taken(self, number: int) -> None:
        self._pause([number], -1)
        replica = self.replicas[number]
        replica.let_in()
        self._expect(number)
        self._took(number)

    def _took(self, number: int) -> None:
        if number in self.taking:
            self.taking.discard(number)
            if not self.taking:
                self._advance()

    def _advance(self) -> None:
        for number in self.consumed:
            del self.live[number]
            self.finished.discard(number)
        self.version += 1
        self.consumed, self.phase = [], "waiting"
        self.measures.advance(self.now, self.replicas)
        self._fill()
        self._look()

    def _pause(self, numbers: Iterable[int], more: int) -> None:
        for number in numbers:
            replica = self.replicas[number]
            replica.catch_up(self.now)
            replica.paused += more
            self._expect(number)

    # ------------------------------------------------------------ failures

    def _expect_failures(self) -> None:
        failures = self.of.failures
        for rate, act in (
            (failures.replica_per_hour * len(self.replicas), self._replica_dies),
            (failures.learner_per_hour, self._learner_dies),
            (failures.node_per_hour * failures.nodes, self._node_dies),
        ):
            if rate > 0:
                self._in(self.luck.exponential(_HOUR / rate), self._repeat_failure, rate, act)

    def _repeat_failure(self, rate: float, act: Callable[[], None]) -> None:
        act()
        self._in(self.luck.exponential(_HOUR / rate), self._repeat_failure, rate, act)

    def _replica_dies(self) -> None:
        number = int(self.luck.integers(len(self.replicas)))
        replica = self.replicas[number]
        if not replica.alive:
            return
        self.counts["restarts"] += 1
        replica.catch_up(self.now)
        replica.alive, replica.draining = False, False
        replica.keys += 1
        lost = replica.drop_all()
        self._expect(number)
        self.counts["lost_turns"] += len(lost)
        for request in lost:
            self._send_again(request)
        self._took(number)
        self._in(self.of.failures.restart_seconds, self._replica_is_back, number)

    def _send_again(self, request: SimulatedRequest) -> None:
        """Send a lost turn to another replica, which prefills all of it."""
        episode = self.episodes[request.episode]
        self._become(episode, "engine")
        self._send(request, episode)

    def _replica_is_back(self, number: int) -> None:
        replica = self.replicas[number]
        replica.catch_up(self.now)
        replica.alive = True
        self._hold(number, 0)
        orphans, self.orphans = self.orphans, []
        for request in orphans:
            self._send_again(request)
        self._expect(number)

    def _learner_dies(self) -> None:
        if self.phase not in ("learning", "waiting") or self.settling:
            return
        self.counts["restarts"] += 1
        self.learning += 1
        if self.phase == "learning" and self.of.take_turns:
            self._pause(range(len(self.replicas)), -1)
        was_learning, self.phase = self.phase == "learning", "down"
        self._in(self.of.failures.restart_seconds, self._learner_is_back, was_learning)

    def _learner_is_back(self, was_learning: bool) -> None:
        self.phase = "waiting"
        if was_learning:
            self._learn()
        else:
            self._look()

    def _node_dies(self) -> None:
        node = int(self.luck.integers(self.of.failures.nodes))
        self.counts["restarts"] += 1
        hit = [e for e in self.episodes.values() if e.node == node and e.state in ("engine", "tools", "tool_workers")]
        drawing: dict[int, set[int]] = {}
        for episode in hit:
            episode.epoch += 1
            if episode.state == "engine":
                drawing.setdefault(episode.replica, set()).add(episode.number)
            self._become(episode, "failures")
            self._in(self.of.failures.restart_seconds, self._reset, episode)
        for number, episodes in drawing.items():
            self.replicas[number].catch_up(self.now)
            self.replicas[number].remove(episodes)
            self._expect(number)
        self.counts["lost_episodes"] += len(hit)
