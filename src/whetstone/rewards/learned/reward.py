"""A reward that was learned, and may go on learning while it is used."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from whetstone.plugins import OptionError
from whetstone.rewards.answers.exact_match import exact_match
from whetstone.rewards.judged.material import transcript
from whetstone.rewards.learned.model import HEAD, Pair, RewardModel
from whetstone.rewards.protocol import Reward
from whetstone.trajectory import Score, Task, Trajectory


class Learned:
    """Sigmoid of the score of a reward model; `outcome` determines success.

    With `refresh` the model is trained after every step on pairs of the step's own groups: episodes that `outcome`
    accepts are better than others of the same task. Recorded scores do not change; a recomputed score is that of the
    current model.

    Args:
        path: A Hugging Face folder, with the line `whetstone rewards train-model` put there.
        outcome: Rule that determines success.
        outcome_weight: Weight of `outcome` in the sum; 0 uses only the model.
        weight: Weight of the model.
        refresh: Train the model after every step.
        memory: Number of latest pairs that it is trained on.
        steps: Optimizer steps of the model per training step.
        trust_remote_code: Whether code that comes with the model is run.
        device: Device of the model, see `policy.device`.

    Source: ARMAP 2025, arXiv:2502.12130; Cooper 2025, arXiv:2508.05613, for training on answers that a precise rule
        accepts (its negatives are rewritten by a model; ours are the group's own).
    """

    provides = frozenset({"learned"})

    def __init__(
        self,
        *,
        path: str,
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
            raise ValueError(f"memory and steps are 1 or more, got {memory} and {steps}")
        if not refresh and not (Path(path) / HEAD).is_file() and Path(path).is_dir():
            said = f"{path} has no {HEAD}: `whetstone rewards train-model RECIPE --model {path}` makes one"
            raise OptionError("path", said)
        self.model = RewardModel(path, trust_remote_code=trust_remote_code, device=device)
        self.outcome, self.outcome_weight, self.weight = outcome, outcome_weight, weight
        self.refresh, self.steps = refresh, steps
        self._pairs: deque[Pair] = deque(maxlen=memory)
        self._said: dict[str, float] = {}
        if refresh:  # only then is there anything to remember
            self.observe, self.state, self.load_state = self._observe, self._state, self._load_state
            self.metrics, self.trains_model = self._metrics, True

    async def __call__(self, trajectory: Trajectory, task: Task) -> Score:
        """What it says."""
        rule = await self.outcome(trajectory, task)
        if rule.invalid:
            return rule
        said = await self.model.score(transcript(trajectory))
        liked = float(torch.sigmoid(torch.tensor(said)))
        value = self.weight * liked + self.outcome_weight * rule.value
        return Score(value, {**rule.parts, "learned": liked}, rule.turns, rule.success, rule.signals)

    def _observe(self, heard: Any) -> None:
        new = []
        for group in heard.groups:
            better = [t for t in group.counted if t.solved]
            worse = [t for t in group.counted if not t.solved]
            new += [Pair(transcript(a), transcript(b)) for a, b in zip(better, worse, strict=False)]
        if not new:
            return
        self._said = {"accuracy_before": self.model.accuracy(new), "pairs": float(len(new))}
        self._pairs.extend(new)
        self._said["loss"] = self.model.fit(list(self._pairs), steps=self.steps, learning_rate=0.01, scaled=False)

    def _metrics(self) -> dict[str, float]:
        return dict(self._said)

    def _state(self) -> dict[str, Any]:
        return {"line": self.model.state(), "pairs": [[pair.better, pair.worse] for pair in self._pairs]}

    def _load_state(self, state: Mapping[str, Any]) -> None:
        self.model.load_state(state["line"])
        self._pairs.clear()
        self._pairs.extend(Pair(better, worse) for better, worse in state["pairs"])
