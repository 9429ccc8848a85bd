"""Composed rewards: learned weights of terms switch a misleading one off, and tasks weigh terms themselves."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random

import torch
from torch import Tensor

from paper_properties import exact
from paper_properties.enumeration import TREE
from paper_properties.episodes import TASK, make_episode, make_turn
from whetstone.analysis.exact import Figure
from whetstone.rewards.composed import Composed
from whetstone.rewards.learned_weights import LearnedWeights
from whetstone.rewards.protocol import Reward
from whetstone.rewards.term import Term
from whetstone.rollout.protocol import StepOutcome
from whetstone.trajectory import Group, Score, Task, Trajectory

EPISODES = [make_episode([make_turn(str(k))], name=str(k)) for k in range(4)]
PRIMARY, MISLEADING, HELPFUL = (1.0, 0.0, 0.3, 0.8), (0.0, 1.0, 1.0, 0.0), (0.9, 0.0, 0.4, 0.7)
"""Values of the four episodes of the tree."""


def _term(values: Sequence[float], **options: float | bool | str) -> Term:
    async def reward(trajectory: Trajectory, task: Task) -> Score:
        return Score(values[int(trajectory.turns[0].message.text)])

    built: Reward = reward
    return Term(reward=built, **options)  # type: ignore[arg-type]


def _scores(reward: Composed, task: Task = TASK) -> list[Score]:
    return [asyncio.run(reward(each, task)) for each in EPISODES]


def _optimum(reward: Composed, updates: int) -> Tensor:
    """[4] probabilities after exact gradient steps of size 2, with the reward of all episodes observed after each."""
    logits = TREE.logits.clone().requires_grad_()
    for step in range(updates):
        scores = _scores(reward)
        values = torch.tensor([score.value for score in scores], dtype=torch.float64)
        probabilities = logits.log_softmax(-1)[TREE.nodes, TREE.paths].sum(1).exp()
        (gradient,) = torch.autograd.grad(probabilities @ values, logits)
        logits = (logits + 2 * gradient).detach().requires_grad_()
        if reward.primary is not None:
            scored = (replace(each, score=score) for each, score in zip(EPISODES, scores, strict=True))
            reward.observe(StepOutcome(step + 1, (Group(TASK, tuple(scored)),), {}, Random(0)))
    return logits.log_softmax(-1)[TREE.nodes, TREE.paths].sum(1).exp().detach()


@exact(
    "behavior-alignment-reward-function-optimization",
    of=(Composed, LearnedWeights),
    note="a regression within groups in place of implicit gradients; the policy is enumerated",
)
def misleading_term_is_switched_off() -> list[Figure]:
    """A term that opposes the primary outcome keeps the exact policy gradient from the best episode if its weight is
    fixed; with learned weights its factor becomes 0, the helpful term stays on, and the primary outcome is reached."""

    def terms(is_learned: bool) -> Mapping[str, Term]:
        return {
            "outcome": _term(PRIMARY),
            "misleading": _term(MISLEADING, weight=2.0, learned=is_learned),
            "helpful": _term(HELPFUL, weight=0.5, learned=is_learned),
        }

    fixed, learned = Composed(terms=terms(False)), Composed(terms=terms(True), primary="outcome", prior=4.0)
    primary = torch.tensor(PRIMARY, dtype=torch.float64)
    single = LearnedWeights(["x"], prior=4.0, decay=1.0)
    single.observe_groups([[(0.0, 0.0), (1.0, 1.0), (0.0, 1.0), (1.0, 0.0)], [(0.0, 0.0), (5.0, 0.0)]])
    return [
        Figure("primary outcome after 200 updates, fixed weights", "<", 0.5, float(_optimum(fixed, 200) @ primary)),
        Figure("the same, learned weights", ">", 0.95, float(_optimum(learned, 200) @ primary)),
        Figure("factor of the misleading term", "=", 0.0, learned.learned_weights.factors["misleading"]),
        Figure("factor of the helpful term", ">", 0.9, learned.learned_weights.factors["helpful"]),
        # four episodes with correlation 0 and a prior of 4: (4 · 0 + 4) / (4 + 4); the group of equal outcomes is void
        Figure("factor of a term without correlation", "=", 0.5, single.factors["x"]),
    ]


@exact(
    "sequential-recommendation-optimizing-both-immediate-feedback",
    of=Composed,
    note="weights are private data of the tasks; they are not learned",
)
def tasks_weigh_immediate_and_long_term_terms() -> list[Figure]:
    """With weights per task, an episode with immediate value is best in one task and an episode with long-term value in
    another; the sum with equal weights chooses one episode for both tasks and loses value in one of them."""
    immediate, lasting = (1.0, 0.2, 0.5, 0.0), (0.0, 0.9, 0.5, 0.4)
    by_task = {
        "immediate": _term(immediate, task_weight="now"),
        "lasting": _term(lasting, task_weight="later"),
    }
    blind = _scores(Composed(terms={"immediate": _term(immediate), "lasting": _term(lasting)}))
    figures = []
    for name, now, later, best in (("immediate", 0.9, 0.1, 0), ("lasting", 0.1, 0.9, 1)):
        scores = _scores(Composed(terms=by_task), Task("t", "?", {"now": now, "later": later}))
        values = [score.value for score in scores]
        chosen = max(range(4), key=lambda k: blind[k].value)
        figures += [
            Figure(f"best episode of the task with {name} value", "=", best, values.index(max(values))),
            Figure(f"its value: {now} · {immediate[best]} + {later} · {lasting[best]}", "=",
                   now * immediate[best] + later * lasting[best], max(values)),
            Figure(f"value of the episode that equal weights choose, {name}", "<" if best == 0 else "=", max(values),
                   values[chosen]),
        ]  # fmt: skip
    return figures
