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
    """σ of what a reward model says of an episode; success is what a rule says.

    With `refresh` the model learns on behind every step, from pairs of the step's own groups: better are episodes the
    rule calls right, worse are others of the same task. The rule says what is right and nothing of how good the rest
    is, so that what it does not recognise is not called wrong anywhere else. What was said before is on record; a score
    that is computed again is that of the model as it is then.

    Args:
        path: A Hugging Face folder, with the line `whetstone rewards train-model` put there.
        outcome: The rule.
        beside: What the rule itself counts for, beside the model: 0 for the model alone.
        weight: Of the model.
        refresh: Whether it learns on.
        memory: Pairs it learns from, the latest so many.
        steps: Of its optimiser, behind each step.
        trust_remote_code: Whether code that comes with the model is run.
        device: What the model is computed on, as of `policy.device`.

    Source: ARMAP 2025, arXiv:2502.12130; Cooper 2025, arXiv:2508.05613, for learning on from what a precise rule
        accepts
    (its negatives are rewritten by a model; ours are the group's own).
    """

    provides = frozenset({"learned"})

    def __init__(
        self,
        *,
        path: str,
        outcome: Reward = exact_match,
        beside: float = 0.0,
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
        self.outcome, self.beside, self.weight = outcome, beside, weight
        self.refresh, self.steps = refresh, steps
        self._pairs: deque[Pair] = deque(maxlen=memory)
        self._said: dict[str, float] = {}
        if refresh:  # only then is there anything to remember
            self.observe, self.state, self.load_state = self._observe, self._state, self._load_state
            self.metrics = self._metrics

    async def __call__(self, trajectory: Trajectory, task: Task) -> Score:
        """What it says."""
        rule = await self.outcome(trajectory, task)
        if rule.invalid:
            return rule
        said = await self.model.score(transcript(trajectory))
        liked = float(torch.sigmoid(torch.tensor(said)))
        value = self.weight * liked + self.beside * rule.value
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
