"""What does a simulated run consist of? Who computes how fast, what an episode is like, and how far it may run ahead.

Times are seconds, lengths are tokens. Nothing here knows where a number comes from: measured rates and those of a
formula (`plan_rates.py`) are written into the same fields.

Easy to get wrong: a wider spread keeps the mean. With a fixed median, a larger σ would also be more work.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from whetstone.errors import RecipeError


@dataclass(frozen=True, slots=True)
class Spread:
    """A log-normal number, `mean · exp(σ z − σ²/2)`; with σ 0 always the mean; or one of `values`, each as likely."""

    mean: float
    sigma: float = 0.0
    values: tuple[float, ...] = ()
    """What was measured; where there are any, `mean` and `sigma` are not used."""
    most: float = math.inf
    """A limit or a timeout: longer ones are cut to it, which takes a little from the mean."""

    def draw(self, numbers: np.random.Generator, count: int) -> NDArray[np.float64]:
        """So many of it, each for itself: [count]."""
        drawn: NDArray[np.float64]
        if self.values:
            drawn = numbers.choice(np.asarray(self.values, dtype=np.float64), count)
        elif self.sigma == 0 or self.mean == 0:
            drawn = np.full(count, self.mean)
        else:
            drawn = np.exp(math.log(self.mean) - self.sigma**2 / 2 + self.sigma * numbers.standard_normal(count))
        cut: NDArray[np.float64] = np.minimum(drawn, self.most)
        return cut

    @property
    def expected(self) -> float:
        """Its mean, but for what is cut."""
        return sum(self.values) / len(self.values) if self.values else self.mean


@dataclass(frozen=True, slots=True)
class EngineRates:
    """One replica. A decode step gives each of `b` sequences a token and takes

        step_seconds + b · step_seconds_per_sequence + rows · step_seconds_per_row

    and what is read at once (prompts, answers of tools) stops everyone for as long as it takes.
    """

    replicas: int = 1
    step_seconds: float = 0.02
    step_seconds_per_sequence: float = 0.0002
    step_seconds_per_row: float = 0.0
    """Of each row of keys that attention goes through. An engine that reads rows as they lie goes from the first of
    those who draw to the last, past episodes that wait for a tool; where that were more than three times as many as
    draw, it costs as much as three times as many. 0: where keys lie costs nothing."""
    prefill_seconds: float = 0.0
    """Of every turn, whatever it reads."""
    prefill_seconds_per_token: float = 0.0
    pass_seconds: float = 0.0
    """Of reading, however many enter by it. Where it takes any, those who would enter wait for company as they do in
    the engine of this project: until they have together waited as long as a pass holds up those who draw, or one of
    them as long as eight passes."""
    max_sequences: int = 256
    """Drawn from at once; more wait."""


@dataclass(frozen=True, slots=True)
class EpisodeShape:
    """What episodes are like."""

    turns: Spread = Spread(4)
    prompt_tokens: Spread = Spread(200)
    turn_tokens: Spread = Spread(100)
    """Sampled in a turn."""
    observation_tokens: Spread = Spread(50)
    tool_seconds: Spread = Spread(1.0)
    """Of each turn but the last."""
    last_tool_seconds: Spread | None = None
    """Of the last turn; None: an episode ends with what the policy says last."""
    reset_seconds: Spread = Spread(0.0)
    reward_seconds: Spread = Spread(0.0)


@dataclass(frozen=True, slots=True)
class LearnerRates:
    """An update takes `seconds + tokens · seconds_per_token`; then the weights travel."""

    seconds: float = 1.0
    seconds_per_token: float = 0.0
    between_seconds: float = 0.0
    """Of a step in which nothing is learned: what is written, checked, counted."""
    transfer_seconds: float = 0.0
    """In which replicas take new weights and draw nothing."""
    prepare_seconds: float = 0.0
    """In which weights are on their way while replicas draw on under the old ones."""


@dataclass(frozen=True, slots=True)
class Failures:
    """Losses an hour, in the mean; each is back after `restart_seconds`."""

    replica_per_hour: float = 0.0
    """Of each replica. A turn under way is drawn again by another; turns that are over are kept."""
    learner_per_hour: float = 0.0
    """Of the learner's group as a whole. The update under way is made again."""
    node_per_hour: float = 0.0
    """Of each node of environments. Its episodes begin again."""
    nodes: int = 1
    restart_seconds: float = 120.0


@dataclass(frozen=True, slots=True)
class Scenario:
    """A whole run."""

    engine: EngineRates = EngineRates()
    episode: EpisodeShape = EpisodeShape()
    learner: LearnerRates = LearnerRates()
    failures: Failures = Failures()
    groups_per_update: int = 16
    group_size: int = 8
    max_in_flight: int = 256
    """Episodes under way at once."""
    admit_ahead: int = 0
    max_staleness: int = 0
    deterministic: bool = False
    in_flight: Literal["drain", "continue", "recompute"] = "recompute"
    take_turns: bool = False
    """Whether engine and learner share what they compute on: the one stands still while the other works."""
    environment_workers: int | None = None
    """Tool calls at work at once; more wait. None: any number."""
    reward_workers: int | None = None
    updates: int = 20
    skip: int = 2
    """Updates in front that do not count: the pipeline fills up."""
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (
            ("groups_per_update", 1), ("group_size", 1), ("max_in_flight", 1), ("admit_ahead", 0), ("updates", 1),
        ):  # fmt: skip
            if getattr(self, name) < least:
                raise RecipeError(f"{name}: {least} or more, got {getattr(self, name)}")
        if self.max_staleness < self.admit_ahead:
            raise RecipeError(
                f"max_staleness: at least admit_ahead ({self.admit_ahead}), got {self.max_staleness}: what is sampled "
                "ahead is as old when it is learned from"
            )
        if not 0 <= self.skip < self.updates:
            raise RecipeError(f"skip: fewer than the {self.updates} updates, got {self.skip}")

    @property
    def by_recipe(self) -> bool:
        """Whether a group is sampled under one version alone (see `Reinforcement`)."""
        return self.deterministic or self.admit_ahead == 0


@dataclass(frozen=True, slots=True)
class Shares:
    """Of the time that counts, in which something was so; each from 0 to 1."""

    learner: float
    """The learner computed."""
    sampler: float
    """A replica drew or read, in the mean over replicas."""
    sampler_batch: float
    """Sequences in a replica's batch while it was at work, over those it may have."""
    environment: float
    """Tool calls at work, over workers; without a number of workers over places for episodes."""
    places: float
    """Episodes under way, over places."""
    transfer: float
    """Weights were taken and nobody drew."""


@dataclass(frozen=True, slots=True)
class Summary:
    """What a simulated run came to."""

    seconds_per_update: float
    updates_per_hour: float
    episodes_per_hour: float
    tokens_per_second: float
    """Sampled ones that were learned from."""
    shares: Shares
    waiting: dict[str, float]
    """What the learner waited for, as shares of all time, by what the episodes under way were doing: `engine`, `tools`,
    `tool_workers`, `rewards`, `reward_workers`, `places`, `failures`; and `stragglers`, whatever they did, while fewer
    than a tenth of an update's episodes were under way."""
    staleness: dict[int, float]
    """Share of groups by how many updates their beginning lies back when they are learned from."""
    staleness_mean: float
    token_staleness_mean: float
    """Of tokens, each by the version that drew its turn's last one."""
    bottleneck: str
    """`learner`, `transfer`, `between` (what a step does beside learning), or what it waited for most."""
    started: int
    consumed: int
    """Groups; each counts once."""
    alive: int
    """Groups under way or waiting at the end."""
    restarts: int
    lost_turns: int
    """Turns drawn again after a failure."""
    lost_episodes: int
    """Episodes begun again after a failure."""
    seconds: float
    """Simulated, of the updates that count."""
    steps: list[float] = field(default_factory=list)
    """Seconds of each update that counts."""

    @property
    def staleness_max(self) -> int:
        """The largest."""
        return max(self.staleness, default=0)
