"""Composed reward: a sum of named terms with weights, products, gates, schedules and bounds.

    reward:
      name: composed
      terms:
        correct: exact_number
        brief: {name: few_calls, weight: 0.2, times: correct}          # a product: nothing for a wrong answer
        tools_ran: {name: executed_calls, weight: 0.1, gate: correct, high: 3}
        format: {name: well_formed, weight: 0.5, fade: {to: 0, over: 100}}

The value is Σ w · gate · factor · clamp(term). Each term is logged by its name.

Note: Efficiency and process terms that are added to the outcome, without `gate` or `times`, reward an agent for giving
up early; `whetstone rewards audit` detects that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace

from whetstone.errors import RecipeError, did_you_mean
from whetstone.rewards.protocol import GroupReward, close_reward, provided_columns
from whetstone.rewards.term import Term
from whetstone.trajectory import Score, Task, Trajectory


class Composed:
    """Reward that sums named terms, each with a weight, and optionally a gate, a factor, a schedule and bounds.

    Args:
        terms: Terms by name; see `Term` for the options of a term.
        success: Name of the term that determines success; None: the first term that defines success.

    Raises:
        RecipeError: If a term refers to an unknown term or to itself.
    """

    def __init__(self, *, terms: Mapping[str, Term], success: str | None = None) -> None:
        self.terms, self.success = terms, success
        for name, term in terms.items():
            for other in (*term.gate_names, *((term.times,) if term.times else ())):
                if other not in terms:
                    raise RecipeError(f'terms.{name}: no term named "{other}"{did_you_mean(other, terms)}')
                if other == name:
                    raise RecipeError(f"terms.{name}: cannot refer to itself; name another term in gate or times")
        if success is not None and success not in terms:
            raise RecipeError(f'success: no term named "{success}"{did_you_mean(success, terms)}')
        self.provides = frozenset(terms).union(*(provided_columns(term.reward) for term in terms.values()))
        if any(isinstance(term.reward, GroupReward) for term in terms.values()):
            self.compared = self._compared

    async def __call__(self, trajectory: Trajectory, task: Task) -> Score:
        """Compute the rewards of all terms and combine them; the score is unknown if the score of a term is unknown."""
        scores = await asyncio.gather(*(term.reward(trajectory, task) for term in self.terms.values()))
        return self._together(trajectory, dict(zip(self.terms, scores, strict=True)))

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
            self._together(t, dict(zip(self.terms, row, strict=True)))
            for t, row in zip(trajectories, rows, strict=True)
        ]

    def _together(self, trajectory: Trajectory, scores: Mapping[str, Score]) -> Score:
        for name, score in scores.items():
            if score.invalid:
                return Score.unknown(f"{name}: {score.invalid}")
        version = oldest_version(trajectory)
        values = {name: term.clamp_value(scores[name].value) for name, term in self.terms.items()}
        total, parts = 0.0, {}
        turns: list[float] | None = None
        for name, term in self.terms.items():
            factor = term.weight_at(version)
            factor *= all(values[other] >= term.at_least for other in term.gate_names)
            factor *= values[term.times] if term.times is not None else 1.0
            total += factor * values[name]
            parts[name] = values[name]
            parts |= {f"{name}.{part}": value for part, value in scores[name].parts.items() if part != name}
            if factor != 1.0 or term.fade is not None or term.gate_names or term.times:
                parts[f"{name}.paid"] = factor * values[name]
            of_turns = scores[name].turns
            if of_turns is not None:
                turn_total = sum(of_turns)  # rewards of turns are added to the value, within the same bound
                factor *= term.high / turn_total if term.high is not None and turn_total > term.high else 1.0
                turns = turns or [0.0] * len(trajectory.turns)
                turns = [sum_ + factor * value for sum_, value in zip(turns, of_turns, strict=True)]
        signals = {name: row for score in scores.values() for name, row in score.signals.items()}
        return Score(total, parts, None if turns is None else tuple(turns), self._solved(scores), signals)

    def _solved(self, scores: Mapping[str, Score]) -> bool | None:
        if self.success is not None:
            return scores[self.success].success
        return next((score.success for score in scores.values() if score.success is not None), None)

    async def close(self) -> None:
        """Close the rewards of all terms."""
        for term in self.terms.values():
            await close_reward(term.reward)


def oldest_version(trajectory: Trajectory) -> int:
    """Return the oldest version of the weights that sampled a token of the trajectory.

    Returns 0 if no token has a version.
    """
    versions = [version for turn in trajectory.turns for version in turn.action.versions if version >= 0]
    return min(versions, default=0)
