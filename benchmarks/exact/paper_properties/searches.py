"""Selection at test time: search over calls, candidates per turn, process scorers; and pairs of sibling turns."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import torch

from paper_properties import exact
from paper_properties.episodes import TASK, make_episode, make_turn
from whetstone.algorithms.objectives.preference import step_dpo
from whetstone.analysis.exact import Figure
from whetstone.rewards.process.step_labels import StepLabels
from whetstone.rollout.strategies.sibling_turns import SiblingTurns
from whetstone.rollout.strategies.tree_search import TreeSearch
from whetstone.trajectory import EndReason, Group, Score, Task, Trajectory

_DEPTH = 3


class ScriptedRoller:
    """Roller whose action in a turn is a function of the depth and of the index of the sample."""

    max_turns = _DEPTH

    def __init__(self, act: Callable[[int, int], str], solved: Callable[[Sequence[str]], bool]) -> None:
        self.act, self.solved, self.num_samples = act, solved, 0

    def samples(self, usual: int) -> int:
        return usual

    async def sample(self, task: Task, *, index: int, max_turns: int | None = None, **how: Any) -> Trajectory:
        return self._extend((), index)

    async def fork(self, task: Task, parent: Trajectory, *, turns: int, index: int, **how: Any) -> Trajectory:
        return self._extend(parent.turns[:turns], index)

    def _extend(self, turns: Sequence[Any], index: int) -> Trajectory:
        self.num_samples += 1
        path = make_episode([*turns, make_turn(self.act(len(turns), index))], name=f"{index}")
        if len(path.turns) < _DEPTH:
            return replace(path, ended=EndReason.MAX_TURNS)
        solved = self.solved(_texts(path))
        return replace(path, score=Score(float(solved), success=solved))


def _texts(path: Trajectory) -> list[str]:
    return [turn.message.text for turn in path.turns]


def _overlap(plan: Sequence[str]) -> Callable[..., Any]:
    """Return a verifier: the number of calls of a plan that a path has in any order; 3.5 for the plan itself."""

    async def verifier(trajectory: Trajectory, task: Task) -> Score:
        texts = _texts(trajectory)
        return Score(3.5 if texts == list(plan) else float((Counter(texts) & Counter(plan)).total()))

    return verifier


@exact("toolchain-star", of=TreeSearch,
       note="the value is the overlap with a plan in memory, less a cost per turn; no self-consistency")  # fmt: skip
def a_star_needs_fewer_expansions_than_depth_first() -> list[Figure]:
    """Over all 27 plans of three calls of three tools, A* and depth-first search find the only valid plan; depth-first
    search expands 4a + b + 2 paths for the plan (a, b, c), seven on average. A* with a value that knows the calls of
    the plan, in any order, expands about half as many."""
    expansions: dict[str, list[int]] = {"a_star": [], "depth_first": []}
    num_found, wrong = 0, 0
    for plan in product("012", repeat=_DEPTH):
        for method, counts in expansions.items():
            roller = ScriptedRoller(lambda depth, index: str(index % 3), lambda texts, plan=plan: tuple(texts) == plan)  # type: ignore[misc]
            search = TreeSearch(verifier=_overlap(plan), method=method, expansions=40, width=3, min_value=3.5)  # type: ignore[arg-type]
            group = asyncio.run(search(TASK, roller))  # type: ignore[arg-type]
            num_found += any(path.solved for path in group.counted)
            counts.append(roller.num_samples // 3 - 1)
        wrong += expansions["depth_first"][-1] != 4 * int(plan[0]) + int(plan[1]) + 2
    return [
        Figure("plans found by both searches, of 54", "=", 54, num_found),
        Figure("plans for which depth-first search expands another number of paths", "=", 0, wrong),
        Figure("mean expansions of depth-first search", "=", 7, sum(expansions["depth_first"]) / 27),
        Figure("mean expansions of A*, bound: 4", "<", 4,
               sum(expansions["a_star"]) / 27),
    ]  # fmt: skip


async def _count_right(trajectory: Trajectory, task: Task) -> Score:
    """Return the number of right actions, as a judge of single turns would see them."""
    return Score(float(_texts(trajectory).count("right")))


def _sample_siblings(choices: Sequence[Sequence[str]]) -> Group:
    """Return the group of a policy whose candidates in turn k are `choices[k]`."""
    width = len(choices[0])
    roller = ScriptedRoller(lambda depth, index: choices[depth][index % width], lambda t: t == ["right"] * _DEPTH)
    strategy = SiblingTurns(group_size=width, verifier=_count_right)
    return asyncio.run(strategy(TASK, roller))  # type: ignore[arg-type]


@exact("gta1", of=SiblingTurns, note="a game of three binary turns instead of pages")
def candidates_per_turn_raise_success_over_one_sample() -> list[Figure]:
    """With two candidates per turn and a judge that knows the right one, three turns with two equally frequent actions
    are solved with probability (1 − 1/4)³ = 27/64 instead of 1/8 for one sample, over all outcomes of the policy."""
    turns = list(product(("right", "wrong"), repeat=2))
    solved = [_sample_siblings(choices).trajectories[0].solved for choices in product(turns, repeat=_DEPTH)]
    single = [_sample_siblings(choices).trajectories[0].solved
              for choices in product([("right",), ("wrong",)], repeat=_DEPTH)]  # fmt: skip
    return [
        Figure("success with two candidates", "=", 27 / 64, sum(solved) / len(solved)),
        Figure("success with one sample", "=", 1 / 8, sum(single) / len(single)),
    ]


@exact("sport", of=(SiblingTurns, step_dpo))
def verifier_orders_the_pairs_of_sibling_turns() -> list[Figure]:
    """Over all 512 outcomes of three candidates in three turns, every turn whose candidates differ for the verifier
    gives one pair with the same history, the selected turn has the larger mean value whatever the gold outcome, and the
    loss raises it and lowers its sibling."""
    turns = list(product(("right", "wrong"), repeat=3))
    wrong_counts, disordered, unsolved_pairs = 0, 0, 0
    for choices in product(turns, repeat=_DEPTH):
        group = _sample_siblings(choices)
        path, *siblings = group.trajectories
        assert path.score is not None
        wrong_counts += len(siblings) != sum(len(set(each)) == 2 for each in choices)
        unsolved_pairs += len(siblings) * (not path.solved)
        for sibling in siblings:
            depth = len(sibling.turns)
            through = [path, *(other for other in siblings if len(other.turns) > depth)]
            mean = sum(each.score.value for each in through if each.score is not None) / len(through)
            disordered += not (
                sibling.score is not None
                and mean > sibling.score.value
                and sibling.turns[:-1] == path.turns[: depth - 1]
                and (sibling.turns[-1].message.text, path.turns[depth - 1].message.text) == ("wrong", "right")
            )
    sums = torch.tensor([-1.0, -2.0], requires_grad=True)
    pair = torch.tensor([0, 0]), torch.tensor([1, 2]), torch.tensor([5, 5])
    loss = step_dpo(sums, torch.tensor([-1.0, -2.0]), torch.tensor([-0.5, -1.0]), *pair)
    loss.loss.backward()  # type: ignore[no-untyped-call]
    assert sums.grad is not None
    return [
        Figure("groups with another number of pairs, of 512", "=", 0, wrong_counts),
        Figure("pairs in another order or with another history", "=", 0, disordered),
        Figure("pairs of episodes whose gold outcome is 0", ">", 0, unsolved_pairs),
        Figure("gradient on the selected turn (β = 0.1: −β/2)", "=", -0.05, float(sums.grad[0])),
        Figure("gradient on its sibling", "=", 0.05, float(sums.grad[1])),
    ]


@exact("toolcomp", of=StepLabels, note="scorers are labels with errors; none is trained")
def process_scorer_ranks_better_if_most_steps_are_wrong() -> list[Figure]:
    """If each label of three steps, and the label of the outcome, is wrong with probability 0.2, the mean of the step
    labels ranks the right trace above a wrong one more often than the outcome label, on average over all seven wrong
    traces and all errors; it ranks better the more steps are wrong, and worse than the outcome label if one is. So it
    ranks worse than the outcome label if wrong traces have few wrong steps, such as each with probability 0.2."""
    reward = StepLabels(together="mean")
    episode = make_episode([make_turn("step")] * _DEPTH)

    def observe(labels: Sequence[int]) -> float:
        return asyncio.run(reward(episode, Task("t", "?", {"step_labels": list(labels)}))).value

    values = {labels: observe(labels) for labels in product((0, 1), repeat=_DEPTH)}

    def rank(truth: Sequence[int], error: float = 0.2) -> float:
        """Return the probability that the right trace has the larger value, ties half."""
        total = 0.0
        for right, wrong in product(values, values):
            flips = [label != 1 for label in right] + [a != b for a, b in zip(wrong, truth, strict=True)]
            weight = error ** sum(flips) * (1 - error) ** (len(flips) - sum(flips))
            total += weight * ((values[right] > values[wrong]) + 0.5 * (values[right] == values[wrong]))
        return total

    ranks = {truth: rank(truth) for truth in values if sum(truth) < _DEPTH}
    rare = {truth: 0.2 ** truth.count(0) * 0.8 ** truth.count(1) for truth in ranks}
    by_errors = [rank((0,) * k + (1,) * (_DEPTH - k)) for k in range(1, _DEPTH + 1)]
    return [
        Figure("rank@1 of two with the step labels, bound: the outcome label's 0.8", ">", 0.8,
               sum(ranks.values()) / len(ranks)),
        Figure("the same with steps that are wrong with probability 0.2, bound: 0.8", "<", 0.8,
               sum(ranks[truth] * share for truth, share in rare.items()) / sum(rare.values())),
        Figure("rank@1 with one wrong step, bound: the outcome label's 0.8", "<", 0.8, by_errors[0]),
        Figure("rank@1 with two wrong steps minus that with one", ">", 0, by_errors[1] - by_errors[0]),
        Figure("rank@1 with three wrong steps minus that with two", ">", 0, by_errors[2] - by_errors[1]),
    ]  # fmt: skip
