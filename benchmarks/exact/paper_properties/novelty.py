"""Novelty bonuses: counts, random network distillation, control of observations, and repertoires of behaviors."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import replace

from paper_properties import exact
from paper_properties.episodes import TASK, make_episode, make_turn
from whetstone.analysis.exact import Figure
from whetstone.chat import user
from whetstone.rewards.process.novelty import Novelty
from whetstone.rollout.protocol import StepOutcome
from whetstone.seeding import derive_random
from whetstone.trajectory import Group, Score, Task, Trajectory

_PROMPTS = ("alpha", "bravo", "charlie", "delta", "echo", "foxtrot", "golf", "hotel")
_ACCEPTED = ("bravo", "echo", "golf")


async def _classify(trajectory: Trajectory, task: Task) -> Score:
    """Return 1 if the toy classifier accepts the last prompt."""
    solved = trajectory.turns[-1].message.text in _ACCEPTED
    return Score(float(solved), success=solved)


def _train(reward: Novelty, steps: int) -> list[str]:
    """Return the prompts of a policy that always samples the one with the largest reward, the first of equal ones."""
    sampled = []
    for step in range(steps):
        episodes = [_scored(reward, make_episode([make_turn(text)])) for text in _PROMPTS]
        best = max(episodes, key=lambda each: each.score.value if each.score is not None else 0.0)
        _observe(reward, [best], step)
        sampled.append(best.turns[0].message.text)
    return sampled


def _scored(reward: Novelty, episode: Trajectory) -> Trajectory:
    return replace(episode, score=asyncio.run(reward(episode, TASK)))


def _observe(reward: Novelty, episodes: Sequence[Trajectory], step: int = 0) -> None:
    groups = (Group(TASK, tuple(episodes), 0),)
    reward.observe(StepOutcome(step, groups, {}, derive_random("novelty", step)))


@exact("curiosity-driven-red-teaming-large-language", of=Novelty, note="a toy classifier; the policy is an argmax")
def novelty_finds_all_accepted_prompts() -> list[Figure]:
    """A classifier accepts three of eight prompts: without the bonus the policy repeats one; with a count bonus
    below the reward it samples all three at the same success rate; a bonus above the reward lowers the success rate,
    and the metric `novelty_above_outcome` reports it."""
    plain = _train(Novelty(outcome=_classify, over="actions", weight=0.0), 24)
    curious = _train(Novelty(outcome=_classify, over="actions", weight=0.5), 24)
    excessive = Novelty(outcome=_classify, over="actions", weight=4.0)
    excess = _train(excessive, 8)
    return [
        Figure("distinct accepted prompts without the bonus", "=", 1, len({*plain} & {*_ACCEPTED})),
        Figure("with a bonus of 0.5", "=", 3, len({*curious} & {*_ACCEPTED})),
        Figure("success rate without the bonus", "=", 1, sum(text in _ACCEPTED for text in plain) / 24),
        Figure("success rate with a bonus of 0.5", "=", 1, sum(text in _ACCEPTED for text in curious) / 24),
        # 3 accepted: 1 + 4, then 5 refused: 4 > 1 + 4 / √2; the eighth step is refused
        Figure(
            "success rate of the first 8 steps with a bonus of 4", "=", 3 / 8, sum(t in _ACCEPTED for t in excess) / 8
        ),
        Figure(
            "metric `novelty_above_outcome` with a bonus of 4", "=", 1, excessive.metrics()["novelty_above_outcome"]
        ),
    ]


@exact(
    "random-network-distillation-based-deep-reinforcement",
    of=Novelty,
    note="by analogy: a linear predictor over hashed words; a policy that samples the largest reward, instead of PPO",
)
def prediction_error_falls_with_visits() -> list[Figure]:
    """The error of the predictor of a random network falls by (1 − rate)² per visit of a state and is unchanged
    for states without common words. If nothing is paid yet, the bonus leads to all eight places in eight steps, and
    without it the first place is visited forever."""
    reward = Novelty(outcome=_classify, measure="random_network", over="actions", weight=1.0, rate=0.5)
    episode, other = (make_episode([make_turn(text)]) for text in ("alpha", "hotel"))
    bonuses = []
    for _ in range(3):
        scored = _scored(reward, episode)
        bonuses.append(scored.score.value if scored.score is not None else math.nan)
        _observe(reward, [scored])
    unvisited = _scored(reward, other).score
    assert unvisited is not None

    async def not_paid_yet(trajectory: Trajectory, task: Task) -> Score:
        return Score(0.0, success=False)

    explored = _train(Novelty(outcome=not_paid_yet, measure="random_network", over="actions", weight=0.5), 8)
    repeated = _train(Novelty(outcome=not_paid_yet, measure="random_network", over="actions", weight=0.0), 8)
    return [
        *(Figure(f"bonus after {n} visits", "=", 0.25**n, bonuses[n]) for n in range(3)),
        Figure("bonus of a state without common words", "=", 1, unvisited.value),
        Figure("places of 8 that are visited in 8 steps", "=", 8, len({*explored})),
        Figure("without the bonus", "=", 1, len({*repeated})),
    ]


def _mean_control(transitions: Sequence[tuple[str, str]]) -> float:
    """Return the mean bonus of (action, next observation) pairs from one state, after they were observed once."""
    reward = Novelty(outcome=_classify, measure="control", weight=1.0)
    episodes = []
    for action, after in transitions:
        turn = replace(make_turn(action), observation=(user(after),))
        episodes.append(_scored(reward, make_episode([turn])))
    _observe(reward, episodes)
    scores = [_scored(reward, episode).score for episode in episodes]
    return sum(score.value for score in scores if score is not None) / len(episodes)


@exact("information-prioritization-through-empowerment-visual-model", of=Novelty,
       note="by analogy: frequencies of text observations, without a world model")  # fmt: skip
def control_bonus_is_the_mutual_information() -> list[Figure]:
    """The mean bonus is the mutual information of action and next observation: log 2 if the action decides between two
    observations, 0 if chance does, and log 2 less the entropy of the noise if both do."""
    sure = [("left", "lamp on the left"), ("right", "lamp on the right")] * 4
    noise = [(action, coin) for action in ("left", "right") for coin in ("heads", "tails")] * 2
    mixed = [("left", "A")] * 3 + [("left", "B")] + [("right", "B")] * 3 + [("right", "A")]
    entropy = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
    return [
        Figure("mean bonus, controlled", "=", math.log(2), _mean_control(sure)),
        Figure("mean bonus, noise", "=", 0, _mean_control(noise)),
        Figure("mean bonus, controlled in three of four cases", "=", math.log(2) - entropy, _mean_control(mixed)),
    ]


@exact(
    "discovering-exploiting-sparse-rewards-learned-behavior",
    of=Novelty,
    note="by analogy: behaviors are sequences of actions, not learned descriptors",
)
def alternating_bonus_widens_then_exploits() -> list[Figure]:
    """With the bonus on in every other step, a policy that repeats the best known behavior plus bonus has tried all
    eight behaviors of three binary actions after eight steps of exploration, and every step of exploitation after the
    only paid one was found repeats it; without the bonus one behavior is tried."""
    behaviors = [make_episode([make_turn(f"{k >> bit & 1}") for bit in (2, 1, 0)], name=str(k)) for k in range(8)]

    def run(weight: float) -> tuple[int, int]:
        known: dict[str, float] = {}

        async def remembered(trajectory: Trajectory, task: Task) -> Score:
            return Score(known.get(trajectory.id, 0.0), success=known.get(trajectory.id, 0.0) > 0)

        reward = Novelty(outcome=remembered, over="episodes", weight=weight, alternate_steps=1)
        exploited = 0
        for step in range(24):
            scored = [_scored(reward, each) for each in behaviors]
            best = max(scored, key=lambda each: each.score.value if each.score is not None else 0.0)
            exploited += step % 2 == 1 and known.get(best.id, 0.0) > 0
            known[best.id] = float(best.id == "5")
            _observe(reward, [best], step)
        return len(known), exploited

    # bonuses of 2 / √(1 + n) explore behavior k in step 2k, so behavior 5 is known after step 10
    tried, exploited = run(2.0)
    return [
        Figure("behaviors tried", "=", 8, tried),
        Figure("steps of exploitation that are paid, of 7 after the discovery", "=", 7, exploited),
        Figure("behaviors tried without the bonus", "=", 1, run(0.0)[0]),
    ]
