"""Learned reward: a trained reward model, which can be trained further during the run."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from whetstone.compute_thread import run_in_compute_thread
from whetstone.inference import Member
from whetstone.plugins import OptionError
from whetstone.rewards.answers.exact_match import exact_match
from whetstone.rewards.judge_rewards.judge_input import format_episode
from whetstone.rewards.learned.model import HEAD, EpisodePair, RewardModel
from whetstone.rewards.protocol import Reward
from whetstone.trajectory import Score, Task, Trajectory


class LearnedReward:
    """Scores an episode by the sigmoid of a reward model's output; `outcome` determines success.

    With `refresh` the model is trained after every step on pairs of the step's own groups: episodes that `outcome`
    accepts are better than others of the same task. Recorded scores do not change; a recomputed score is that of the
    current model.

    With `member` the model is a model of `policies`, with its own weights, optimizer and head. It is trained after
    every step on all such pairs, unless it has `trained: false`.

    Args:
        path: Hugging Face model folder with the head that `whetstone rewards train-model` has saved.
        member: Model of `policies`, other than the first, to use instead.
        outcome: Reward that determines success.
        outcome_weight: Weight of `outcome` in the sum; 0 uses only the model.
        weight: Weight of the model.
        refresh: Whether the model is trained after every step.
        memory: Number of latest pairs that the model is trained on.
        steps: Optimizer steps of the model per training step.
        trust_remote_code: Whether to run code that comes with the model.
        device: Device of the model, see `policy.device`.

    Source: ARMAP 2025, arXiv:2502.12130; Cooper 2025, arXiv:2508.05613, for training on answers that a precise rule
    accepts (its negatives are rewritten by a model; ours are the group's own).
    """

    provides = frozenset({"learned"})

    def __init__(
        self,
        *,
        path: str | None = None,
        member: Member | None = None,
        outcome: Reward = exact_match,
        outcome_weight: float = 0.0,
        weight: float = 1.0,
        refresh: bool = False,
        memory: int = 256,
        steps: int = 20,
        trust_remote_code: bool = False,
        device: str = "auto",
    ) -> None:
        if memory < 1 or steps < 1:
            raise ValueError(f"memory and steps must be at least 1, got {memory} and {steps}")
        if (path is None) == (member is None):
            raise OptionError("path", "set either path, a model folder, or member, a model of policies")
        if member is not None and refresh:
            raise OptionError("refresh", "has no effect with member, which is trained after every step")
        if path is not None and not refresh and not (Path(path) / HEAD).is_file() and Path(path).is_dir():
            problem = f"{path} has no {HEAD}; create it with `whetstone rewards train-model RECIPE --model {path}`"
            raise OptionError("path", problem)
        self.member = member
        self.model: Any = None
        if path is not None:
            self.model = RewardModel(path, trust_remote_code=trust_remote_code, device=device)
        self.outcome, self.outcome_weight, self.weight = outcome, outcome_weight, weight
        self.refresh, self.steps = refresh, steps
        self._pairs: deque[EpisodePair] = deque(maxlen=memory)
        self._metric_values: dict[str, float] = {}
        if refresh or (member is not None and member.is_trained):  # only then is there a state to save
            self.observe, self.state, self.load_state = self._observe, self._state, self._load_state
            self.metrics, self.trains_model = self._metrics, True

    async def __call__(self, trajectory: Trajectory, task: Task) -> Score:
        """Score a trajectory by the weighted sum of the model's sigmoid and the outcome."""
        rule = await self.outcome(trajectory, task)
        if rule.invalid:
            return rule
        score = await self._score(trajectory)
        liked = float(torch.sigmoid(torch.tensor(score)))
        value = self.weight * liked + self.outcome_weight * rule.value
        return Score(value, {**rule.parts, "learned": liked}, rule.turns, rule.success, rule.signals)

    async def _score(self, trajectory: Trajectory) -> float:
        if self.member is None:
            return float(await self.model.score(format_episode(trajectory)))
        learner = self.member.learner
        return float(await run_in_compute_thread(learner.score, trajectory))

    def _observe(self, step: Any) -> None:
        if self.member is not None:
            self._metric_values = self.member.learner.fit(step.groups)
            return
        new = []
        for group in step.groups:
            better = [t for t in group.counted if t.solved]
            worse = [t for t in group.counted if not t.solved]
            new += [EpisodePair(format_episode(a), format_episode(b)) for a, b in zip(better, worse, strict=False)]
        if not new:
            return
        self._metric_values = {"accuracy_before": self.model.pair_accuracy(new), "pairs": float(len(new))}
        self._pairs.extend(new)
        self._metric_values["loss"] = self.model.fit(
            list(self._pairs), steps=self.steps, learning_rate=0.01, scaled=False
        )

    def _metrics(self) -> dict[str, float]:
        return dict(self._metric_values)

    def _state(self) -> dict[str, Any]:
        if self.member is not None:  # the checkpoint contains the member
            return {"metrics": self._metric_values}
        return {
            "metrics": self._metric_values,
            "line": self.model.state(),
            "pairs": [[pair.better, pair.worse] for pair in self._pairs],
        }

    def _load_state(self, state: Mapping[str, Any]) -> None:
        self._metric_values = dict(state.get("metrics", {}))  # the next step reports them
        if self.member is not None:
            return
        self.model.load_state(state["line"])
        self._pairs.clear()
        self._pairs.extend(EpisodePair(better, worse) for better, worse in state["pairs"])
