"""Composed reward: a sum of named terms with weights, products, gates, schedules and bounds.

    reward:
      name: composed
      terms:
        correct: exact_number
        brief: {name: few_calls, weight: 0.2, times: correct}          # a product: nothing for a wrong answer
        tools_ran: {name: executed_calls, weight: 0.1, gate: correct, high: 3}
        format: {name: well_formed, weight: 0.5, fade: {to: 0, over: 100}}
        near: {name: progress, weight: 0.5, learned: true}             # with primary: correct

The value is Σ w · gate · factor · clamp(term). Each term is logged by its name.

Note: Efficiency and process terms that are added to the outcome, without `gate` or `times`, reward an agent for giving
up early; `whetstone rewards audit` detects that.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from whetstone.errors import RecipeError, did_you_mean
from whetstone.rewards.learned_weights import LearnedWeights
from whetstone.rewards.protocol import GroupReward, close_reward, provided_columns
from whetstone.rewards.term import Term
from whetstone.rollout.protocol import StepOutcome
from whetstone.trajectory import Score, Task, Trajectory


class Composed:
    """Reward that sums named terms, each with a weight, and optionally a gate, a factor, a schedule and bounds.

    Args:
        terms: Terms by name; see `Term` for the options of a term.
        success: Name of the term that determines success; None: the first term that defines success.
        primary: Name of the term from which the factors of terms with `learned: true` are learned, usually the outcome.
        prior: Number of episodes with evidence that outweigh the initial factors, which are 1.
        decay: Factor of the evidence of earlier steps, per step.

    Raises:
        RecipeError: If a term refers to an unknown term or to itself, or if `primary` and learned terms do not match.
    """

    def __init__(
        self,
        *,
        terms: Mapping[str, Term],
        success: str | None = None,
        primary: str | None = None,
        prior: float = 16.0,
        decay: float = 0.95,
    ) -> None:
        self.terms, self.success, self.primary = terms, success, primary
        for name, term in terms.items():
            for other in (*term.gate_names, *((term.times,) if term.times else ())):
                if other not in terms:
                    raise RecipeError(f'terms.{name}: no term named "{other}"{did_you_mean(other, terms)}')
                if other == name:
                    raise RecipeError(f"terms.{name}: cannot refer to itself; name another term in gate or times")
        if success is not None and success not in terms:
            raise RecipeError(f'success: no term named "{success}"{did_you_mean(success, terms)}')
        learned = [name for name, term in terms.items() if term.learned]
        if bool(learned) != (primary is not None):
            raise RecipeError("primary: required by terms with `learned: true`, and has no effect without them")
        if primary is not None and primary not in terms:
            raise RecipeError(f'primary: no term named "{primary}"{did_you_mean(primary, terms)}')
        if primary in learned:
            raise RecipeError(f"terms.{primary}.learned: the primary term is not learned; remove learned")
        self.learned_weights = LearnedWeights(learned, prior=prior, decay=decay)
        if learned:  # only then is there a state to save
            self.observe, self.state, self.load_state = self._observe, self._state, self._load_state
        keys = frozenset(term.task_weight for term in terms.values() if term.task_weight is not None)
        if keys:
            self.private = keys
        self.provides = frozenset(terms).union(*(provided_columns(term.reward) for term in terms.values()))
        if any(isinstance(term.reward, GroupReward) for term in terms.values()):
            self.compared = self._compared

    def with_terms(self, terms: Mapping[str, Term]) -> Composed:
        """Return a copy with other terms of the same names; learned factors are shared."""
        weights = self.learned_weights
        changed = Composed(
            terms=terms, success=self.success, primary=self.primary, prior=weights.prior, decay=weights.decay
        )
        changed.learned_weights = weights
        return changed

    async def __call__(self, trajectory: Trajectory, task: Task) -> Score:
        """Compute the rewards of all terms and combine them; the score is unknown if the score of a term is unknown."""
        scores = await asyncio.gather(*(term.reward(trajectory, task) for term in self.terms.values()))
        return self._together(trajectory, task, dict(zip(self.terms, scores, strict=True)))

    async def _compared(self, trajectories: Sequence[Trajectory], task: Task) -> Sequence[Score]:
        by_name: dict[str, Sequence[Score]] = {}
        for name, term in self.terms.items():
            scores = await asyncio.gather(*(term.reward(trajectory, task) for trajectory in trajectories))
            unknown = next((score.invalid for score in scores if score.invalid), "")
            if isinstance(term.reward, GroupReward) and not unknown:
                scored = [replace(t, score=score) for t, score in zip(trajectories, scores, strict=True)]
                scores = list(await term.reward.compared(scored, task))
            by_name[name] = scores
        rows = zip(*by_name.values(), strict=True)
        return [
            self._together(t, task, dict(zip(self.terms, row, strict=True)))
            for t, row in zip(trajectories, rows, strict=True)
        ]

    def _together(self, trajectory: Trajectory, task: Task, scores: Mapping[str, Score]) -> Score:
        for name, score in scores.items():
            if score.invalid:
                return Score.unknown(f"{name}: {score.invalid}")
        version = oldest_version(trajectory)
        values = {name: term.clamp_value(scores[name].value) for name, term in self.terms.items()}
        total, parts = 0.0, {}
        turns: list[float] | None = None
        for name, term in self.terms.items():
            factor = term.weight_at(version) * _weight_of_task(name, term, task)
            if term.learned:
                learned = self._learned_factor(name, trajectory)
                factor *= learned
                parts[f"{name}.factor"] = learned
            factor *= all(values[other] >= term.at_least for other in term.gate_names)
            factor *= values[term.times] if term.times is not None else 1.0
            total += factor * values[name]
            parts[name] = values[name]
            parts |= {f"{name}.{part}": value for part, value in scores[name].parts.items() if part != name}
            if (
                factor != 1.0
                or term.fade is not None
                or term.gate_names
                or term.times
                or term.learned
                or term.task_weight
            ):
                parts[f"{name}.paid"] = factor * values[name]
            of_turns = scores[name].turns
            if of_turns is not None:
                turn_total = sum(of_turns)  # rewards of turns are added to the value, within the same bound
                factor *= term.high / turn_total if term.high is not None and turn_total > term.high else 1.0
                turns = turns or [0.0] * len(trajectory.turns)
                turns = [sum_ + factor * value for sum_, value in zip(turns, of_turns, strict=True)]
        signals = {name: row for score in scores.values() for name, row in score.signals.items()}
        return Score(total, parts, None if turns is None else tuple(turns), self._solved(scores), signals)

    def _learned_factor(self, name: str, trajectory: Trajectory) -> float:
        """Return the factor that a recorded episode was scored with, or the current one for a new episode."""
        recorded = {} if trajectory.score is None else trajectory.score.parts
        return recorded.get(f"{name}.factor", self.learned_weights.factors[name])

    def _state(self) -> dict[str, Any]:
        return self.learned_weights.dump_state()

    def _load_state(self, state: Mapping[str, Any]) -> None:
        self.learned_weights.restore_state(state)

    def _observe(self, step: StepOutcome) -> None:
        names, primary = self.learned_weights.names, self.primary
        assert primary is not None
        signs = [math.copysign(1.0, self.terms[name].weight) for name in names]
        groups = []
        for group in step.groups:
            parts = [
                each.score.parts for each in group.counted if each.score is not None and primary in each.score.parts
            ]
            values = [[sign * one[name] for sign, name in zip(signs, names, strict=True)] for one in parts]
            groups.append([[*row, one[primary]] for row, one in zip(values, parts, strict=True)])
        self.learned_weights.observe_groups(groups)

    def _solved(self, scores: Mapping[str, Score]) -> bool | None:
        if self.success is not None:
            return scores[self.success].success
        return next((score.success for score in scores.values() if score.success is not None), None)

    async def close(self) -> None:
        """Close the rewards of all terms."""
        for term in self.terms.values():
            await close_reward(term.reward)


def _weight_of_task(name: str, term: Term, task: Task) -> float:
    """Return the task's own weight of a term; 1 without `task_weight`.

    Raises:
        ValueError: If the task has no finite number under the key.
    """
    if term.task_weight is None:
        return 1.0
    value = task.private.get(term.task_weight)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        key = term.task_weight
        raise ValueError(f"terms.{name}.task_weight: {key} of task {task.id} is {value!r}; a finite number is required")
    return float(value)


def oldest_version(trajectory: Trajectory) -> int:
    """Return the oldest version of the weights that sampled a token of the trajectory.

    Returns 0 if no token has a version.
    """
    versions = [version for turn in trajectory.turns for version in turn.action.versions if version >= 0]
    return min(versions, default=0)
