"""Novelty bonus: rare states, actions or behaviors are rewarded in addition to the outcome (intrinsic exploration).

Three measures: counts, the prediction error of a random network (random network distillation), and how much an action
controls the next observation (empowerment).

Note:
    A bonus that can exceed the outcome pays for novelty instead of solutions. The metric `novelty_above_outcome` is the
    fraction of such episodes, and the alarm `novelty above reward` reports them.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from statistics import fmean
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from whetstone.bounded_types import NotNegative, Share
from whetstone.rewards.answers.exact_match import exact_match
from whetstone.rewards.protocol import Reward
from whetstone.rollout.protocol import StepOutcome
from whetstone.trajectory import Score, Task, Trajectory, Turn

Vector = npt.NDArray[np.float64]
_FEATURES, _OUTPUTS = 256, 32


class Novelty:
    """Adds a bonus for novel states to an outcome reward; `outcome` determines success.

        counts            1 / √(1 + n)                      n: earlier visits of the state
        random_network    |f(x) − g(x)|² / |f(x)|²          f: fixed random network, g: linear predictor of f
        control           log p(s'|s, a) − log p(s'|s)      frequencies of earlier steps; 0 for an unseen transition

    Novelty is relative to the episodes of earlier steps, so it is the same for all episodes of a step. A state counts
    once per episode. A turn without an observation has no state. Recorded scores do not change; a recomputed score has
    the present bonus.

    Args:
        outcome: Reward that determines success.
        measure: Measure of novelty, see above. The mean of `control` over actions is the mutual information of action
            and next observation, so observations that the actions do not control earn nothing.
        over: `observations`: text of a turn's observation; `actions`: text and calls of a turn; `episodes`: all actions
            of an episode, the behavior. `control` requires `observations`.
        weight: Weight of the bonus.
        per_turn: Whether bonuses are rewards of their turns; otherwise their sum is added to the value.
        rate: Learning rate of the predictor of `random_network`, per visited state.
        alternate_steps: Number of steps with the bonus, followed by as many without it; 0: always with it.

    Source: Bellemare et al. 2016, arXiv:1606.01868 (counts); Burda et al. 2018, arXiv:1810.12894 (random networks; here
    over hashed words, with a linear predictor); Mohamed & Rezende 2015, arXiv:1509.08731 (control by mutual
    information); Hong et al. 2024, arXiv:2402.19464 (novel prompts of a red team); SERENE 2021, arXiv:2111.01919
    (exploration and exploitation in turn).
    """

    provides = frozenset({"novelty"})

    def __init__(
        self,
        *,
        outcome: Reward = exact_match,
        measure: Literal["counts", "random_network", "control"] = "counts",
        over: Literal["observations", "actions", "episodes"] = "observations",
        weight: NotNegative = 0.01,
        per_turn: bool = False,
        rate: Share = 0.5,
        alternate_steps: int = 0,
    ) -> None:
        if measure == "control" and over != "observations":
            raise ValueError(f"over: control compares observations, got {over}; remove over")
        if alternate_steps < 0:
            raise ValueError(f"alternate_steps must be at least 0, got {alternate_steps}")
        self.outcome, self.measure, self.over, self.weight = outcome, measure, over, weight
        self.per_turn, self.rate, self.alternate_steps = per_turn, rate, alternate_steps
        self.provides = type(self).provides | ({"process_rewards"} if per_turn else set())
        self.counts: Counter[str] = Counter()
        """Number of visits by hash of a state, or of a part of a transition."""
        self.predictor = np.zeros((_OUTPUTS, _FEATURES))
        self.num_steps = 0
        self.best_outcome = 0.0
        """Largest outcome of a solved episode."""
        self._metric_values: dict[str, float] = {}

    async def __call__(self, trajectory: Trajectory, task: Task) -> Score:
        """Score a trajectory by its outcome and the novelty of its states."""
        rule = await self.outcome(trajectory, task)
        if rule.invalid:
            return rule
        turns = self._turn_bonuses(trajectory)
        total = sum(turns)
        parts = {**rule.parts, "novelty": total}
        signals = {**rule.signals, "novelty": tuple(turns)}
        if not self.per_turn:
            return replace(rule, value=rule.value + total, parts=parts, signals=signals)
        before = rule.turns or (0.0,) * len(turns)
        return replace(rule, turns=tuple(map(sum, zip(before, turns, strict=True))), parts=parts, signals=signals)

    def _turn_bonuses(self, trajectory: Trajectory) -> list[float]:
        bonuses = [0.0] * len(trajectory.turns)
        if self.alternate_steps and self.num_steps // self.alternate_steps % 2:
            return bonuses
        for turn, state in self._visited(trajectory):
            bonuses[turn] = self.weight * self._measure_novelty(state)
        return bonuses

    def _visited(self, trajectory: Trajectory) -> Iterator[tuple[int, tuple[str, ...]]]:
        """Yield the turn and the state, or (state, action, next state), of each first visit in an episode."""
        seen: set[tuple[str, ...]] = set()
        before = "\n".join(message.text for message in trajectory.opening)
        actions: list[str] = []
        for number, turn in enumerate(trajectory.turns):
            actions.append(format_action(turn))
            after = "\n".join(message.text for message in turn.observation)
            text = {"observations": after, "actions": actions[-1], "episodes": "\n".join(actions)}[self.over]
            state = (before, actions[-1], after) if self.measure == "control" else (text,)
            before = after
            is_due = number == len(trajectory.turns) - 1 if self.over == "episodes" else state[-1] != ""
            if is_due and state not in seen:
                seen.add(state)
                yield number, state

    def _measure_novelty(self, state: tuple[str, ...]) -> float:
        if self.measure == "counts":
            return float(1 / math.sqrt(1 + self.counts[_hash_texts(*state)]))
        if self.measure == "random_network":
            features = embed_words(state[0])
            target = random_network(features)
            error = target - self.predictor @ features
            return min(1.0, float(error @ error / (target @ target)))
        joint, acted, moved, visited = (self.counts[key] for key in _transition_keys(*state))
        return math.log(joint / acted) - math.log(moved / visited) if joint else 0.0

    def observe(self, step: StepOutcome) -> None:
        """Count the states of a step's episodes, or train the predictor on them."""
        episodes = [trajectory for group in step.groups for trajectory in group.counted]
        above, totals = 0, []
        for trajectory in episodes:
            assert trajectory.score is not None
            bonus = trajectory.score.parts.get("novelty", 0.0)
            value = trajectory.score.value - (0.0 if self.per_turn else bonus)
            if trajectory.solved:
                self.best_outcome = max(self.best_outcome, value)
            totals.append(bonus)
            for _, state in self._visited(trajectory):
                self._learn_state(state)
        if totals:
            above = sum(0 < self.best_outcome < bonus for bonus in totals)
            self._metric_values = {"novelty_bonus": fmean(totals), "novelty_above_outcome": above / len(totals)}
        self.num_steps += 1

    def _learn_state(self, state: tuple[str, ...]) -> None:
        if self.measure == "random_network":
            features = embed_words(state[0])
            error = random_network(features) - self.predictor @ features
            self.predictor = self.predictor + self.rate * np.outer(error, features)
        else:
            self.counts.update(_transition_keys(*state) if self.measure == "control" else [_hash_texts(*state)])

    def metrics(self) -> dict[str, float]:
        """Return the mean bonus, the fraction of episodes with a bonus above the outcome, and the number of states."""
        return {**self._metric_values, "novelty_states": float(len(self.counts))}

    def state(self) -> dict[str, Any]:
        """Return counts, predictor and position for a checkpoint."""
        predictor = self.predictor.tolist() if self.measure == "random_network" else []
        return {"counts": dict(self.counts), "predictor": predictor, "steps": self.num_steps,
                "best_outcome": self.best_outcome, "metrics": self._metric_values}  # fmt: skip

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore the state of a checkpoint."""
        self.counts, self.num_steps, self.best_outcome = Counter(state["counts"]), state["steps"], state["best_outcome"]
        self.predictor = np.array(state["predictor"]) if state["predictor"] else self.predictor
        self._metric_values = dict(state["metrics"])


def format_action(turn: Turn) -> str:
    """Return the text and the calls of a turn as one text."""
    return "\n".join([turn.message.text, *(f"{call.name}({call.arguments})" for call in turn.message.tool_calls)])


def embed_words(text: str) -> Vector:
    """Return [256] the counts of the hashed words of a text, with length 1; without words, the first unit vector."""
    vector = np.zeros(_FEATURES)
    for word in re.findall(r"\w+|[^\w\s]", text.lower()) or [""]:
        vector[int(_hash_texts(word)[:8], 16) % _FEATURES] += 1
    return vector / np.linalg.norm(vector)


def random_network(features: Vector) -> Vector:
    """Return [32] the outputs of a fixed random network with one layer, tanh(W x) with W ~ N(0, 1)."""
    return np.tanh(_WEIGHTS @ features)


_WEIGHTS: Vector = np.random.default_rng(1810_12894).standard_normal((_OUTPUTS, _FEATURES))


def _hash_texts(*texts: str) -> str:
    return hashlib.blake2b("\x1f".join(texts).encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def _transition_keys(before: str, action: str, after: str) -> list[str]:
    """Return keys of (s, a, s'), (s, a), (s, s') and s."""
    parts = (("sas", before, action, after), ("sa", before, action), ("ss", before, after), ("s", before))
    return [_hash_texts(*part) for part in parts]
