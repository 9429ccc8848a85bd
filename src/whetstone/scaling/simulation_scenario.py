"""Scenario of a simulated run: rates of all components, distribution of episodes, and limits of asynchrony.

Times are in seconds, lengths in tokens. Measured rates and those of a formula (`plan_rates.py`) use the same fields.

Note:
    A wider spread keeps the mean. With a fixed median, a larger σ would also increase the work.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from whetstone.errors import RecipeError


@dataclass(frozen=True, slots=True)
class LognormalSpread:
    """Log-normal distribution with a given mean, `mean · exp(σ z − σ²/2)`, or measured values.

    With σ 0 every sample is the mean. With `values`, samples are uniform choices from them.
    """

    mean: float
    sigma: float = 0.0
    values: tuple[float, ...] = ()
    """Measured values to sample from; if there are any, `mean` and `sigma` are not used."""
    maximum: float = math.inf
    """Limit or timeout: larger samples are clipped to this value, which reduces the mean slightly."""

    def draw(self, numbers: np.random.Generator, count: int) -> NDArray[np.float64]:
        """Sample [count] independent values with the given random generator."""
        drawn: NDArray[np.float64]
        if self.values:
            drawn = numbers.choice(np.asarray(self.values, dtype=np.float64), count)
        elif self.sigma == 0 or self.mean == 0:
            drawn = np.full(count, self.mean)
        else:
            drawn = np.exp(math.log(self.mean) - self.sigma**2 / 2 + self.sigma * numbers.standard_normal(count))
        cut: NDArray[np.float64] = np.minimum(drawn, self.maximum)
        return cut

    @property
    def expected(self) -> float:
        """Mean of the distribution, without clipping."""
        return sum(self.values) / len(self.values) if self.values else self.mean


@dataclass(frozen=True, slots=True)
class EngineRates:
    """Rates of one simulated replica.

    A decode step gives each of `b` sequences a token and takes

        step_seconds + b · step_seconds_per_sequence + rows · step_seconds_per_row

    Prefill of prompts and tool results stops all sequences for its duration.
    """

    replicas: int = 1
    """Number of replicas."""
    step_seconds: float = 0.02
    step_seconds_per_sequence: float = 0.0002
    step_seconds_per_row: float = 0.0
    """Seconds per KV slot that attention reads. An engine that reads slots in memory order reads from the first sampled
    sequence to the last, including episodes that wait for a tool. If that is more than three times the number of
    sampled sequences, it costs as much as three times. 0: the location of KV slots costs nothing."""
    prefill_seconds: float = 0.0
    """Fixed seconds per turn."""
    prefill_seconds_per_token: float = 0.0
    pass_seconds: float = 0.0
    """Seconds of a prefill pass, for any number of sequences. If not 0, requests wait for others to join, as in the
    engine of this project: until their total wait equals the delay of all running sequences by a pass, or until one has
    waited for eight passes."""
    max_sequences: int = 256
    """Maximum number of sequences in the batch; further requests wait."""


@dataclass(frozen=True, slots=True)
class EpisodeShape:
    """Distributions of the lengths and latencies of episodes."""

    turns: LognormalSpread = LognormalSpread(4)
    prompt_tokens: LognormalSpread = LognormalSpread(200)
    turn_tokens: LognormalSpread = LognormalSpread(100)
    """Number of sampled tokens per turn."""
    observation_tokens: LognormalSpread = LognormalSpread(50)
    tool_seconds: LognormalSpread = LognormalSpread(1.0)
    """Seconds of the tool call of each turn but the last."""
    last_tool_seconds: LognormalSpread | None = None
    """Seconds after the last turn; None: an episode ends with the last message of the policy."""
    reset_seconds: LognormalSpread = LognormalSpread(0.0)
    reward_seconds: LognormalSpread = LognormalSpread(0.0)


@dataclass(frozen=True, slots=True)
class LearnerRates:
    """Rates of the simulated learner.

    An update takes `seconds + tokens · seconds_per_token`; then weights are transferred.
    """

    seconds: float = 1.0
    seconds_per_token: float = 0.0
    between_seconds: float = 0.0
    """Seconds per step for work other than training: writing, checks, metrics."""
    transfer_seconds: float = 0.0
    """Seconds in which replicas load new weights and sample nothing."""
    prepare_seconds: float = 0.0
    """Seconds of the transfer in which replicas still sample with the old weights."""


@dataclass(frozen=True, slots=True)
class Failures:
    """Mean failures per hour; a failed component returns after `restart_seconds`."""

    replica_per_hour: float = 0.0
    """Failures of each replica per hour. A running turn is sampled again by another one; finished turns are kept."""
    learner_per_hour: float = 0.0
    """Failures of the learner as a whole per hour. The running update is repeated."""
    node_per_hour: float = 0.0
    """Failures of each node of environments per hour. Its episodes restart."""
    nodes: int = 1
    """Number of nodes of environments."""
    restart_seconds: float = 120.0
    """Seconds until a failed component works again."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """Scenario of a simulated run: rates, episodes, failures and settings of asynchrony."""

    engine: EngineRates = EngineRates()
    episode: EpisodeShape = EpisodeShape()
    learner: LearnerRates = LearnerRates()
    failures: Failures = Failures()
    groups_per_update: int = 16
    group_size: int = 8
    max_in_flight: int = 256
    """Maximum number of running episodes."""
    admit_ahead: int = 0
    max_staleness: int = 0
    deterministic: bool = False
    in_flight: Literal["drain", "continue", "recompute"] = "recompute"
    take_turns: bool = False
    """Whether engine and learner share devices, so that one is idle while the other works."""
    environment_workers: int | None = None
    """Maximum number of concurrent tool calls; more wait. None: unlimited."""
    reward_workers: int | None = None
    updates: int = 20
    skip: int = 2
    """Number of first updates that are not counted, while the pipeline fills."""
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (
            ("groups_per_update", 1), ("group_size", 1), ("max_in_flight", 1), ("admit_ahead", 0), ("updates", 1),
        ):  # fmt: skip
            if getattr(self, name) < least:
                raise RecipeError(f"{name}: must be at least {least}, got {getattr(self, name)}")
        if self.max_staleness < self.admit_ahead:
            raise RecipeError(
                f"max_staleness: must be at least admit_ahead ({self.admit_ahead}), got {self.max_staleness}; groups "
                "sampled ahead reach that staleness"
            )
        if not 0 <= self.skip < self.updates:
            raise RecipeError(f"skip: must be from 0 to fewer than the {self.updates} updates, got {self.skip}")

    @property
    def by_recipe(self) -> bool:
        """Whether every group is sampled with only one version of the weights: deterministic or synchronous runs."""
        return self.deterministic or self.admit_ahead == 0


@dataclass(frozen=True, slots=True)
class Shares:
    """Utilization of the components of a simulated run: fractions from 0 to 1 of the counted time."""

    learner: float
    """Fraction in which the learner computed."""
    sampler: float
    """Fraction in which a replica sampled or prefilled, averaged over replicas."""
    sampler_batch: float
    """Sequences in the batch of a busy replica, divided by the maximum."""
    environment: float
    """Running tool calls divided by workers; by episode slots if the number of workers is unlimited."""
    places: float
    """Running episodes divided by slots."""
    transfer: float
    """Fraction in which weights were loaded and no replica sampled."""


@dataclass(frozen=True, slots=True)
class SimulationSummary:
    """Result of a simulated run: throughput, utilization, waits and staleness."""

    seconds_per_update: float
    updates_per_hour: float
    episodes_per_hour: float
    tokens_per_second: float
    """Sampled tokens per second that were trained on."""
    shares: Shares
    waiting: dict[str, float]
    """Waits of the learner as fractions of all time, by the state of the running episodes: `engine`, `tools`,
    `tool_workers`, `rewards`, `reward_workers`, `places`, `failures`; and `stragglers`, whatever their state, while
    fewer than a tenth of an update's episodes were running."""
    staleness: dict[int, float]
    """Fraction of groups by staleness: updates between the start of their sampling and their update."""
    staleness_mean: float
    """Mean staleness of groups, in updates."""
    token_staleness_mean: float
    """Mean staleness of tokens, by the version that sampled the last token of their turn."""
    bottleneck: str
    """`learner`, `transfer`, `between` (work of a step other than training), or the longest wait."""
    started: int
    """Number of groups that were admitted."""
    consumed: int
    """Number of groups that were trained on; each counts once."""
    alive: int
    """Number of groups in progress or waiting at the end."""
    restarts: int
    """Number of failures of all components."""
    lost_turns: int
    """Number of turns sampled again after a failure."""
    lost_episodes: int
    """Number of episodes restarted after a failure."""
    seconds: float
    """Simulated seconds of the counted updates."""
    steps: list[float] = field(default_factory=list)
    """Seconds of each counted update."""

    @property
    def staleness_max(self) -> int:
        """Maximum staleness of a group, in updates."""
        return max(self.staleness, default=0)
