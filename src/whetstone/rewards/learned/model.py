"""What is an episode worth, as a model sees it that learned from pairs? A line over the states of any frozen model.

    transcript → tokens → the mean of the model's last states → a line → a score

The line is fitted to pairs (a better episode, a worse one), by their difference, or to single ones that were right or
wrong. It is small, so it can learn on during a run, and what it learned is in the run's checkpoint.

Easy to get wrong: better and worse must differ in what counts, and not in who wrote them. Pairs come of the same task,
and a rule that is seldom wrong says which is which.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from whetstone.atomic_write import write_text
from whetstone.compute_thread import run_in_compute_thread
from whetstone.errors import PolicyError
from whetstone.policies import Policy, find_device, load_frozen

HEAD = "reward_head.json"
_KEPT = 4096


@dataclass(frozen=True, slots=True)
class Pair:
    """Two episodes of one task, as texts."""

    better: str
    worse: str


class RewardModel:
    """A frozen model and a line over its last states.

    Args:
        path: A Hugging Face folder; a line that was fitted before is in it, as `reward_head.json`.
        trust_remote_code: Whether code that comes with the model is run.
        device: What the model is computed on, as of `policy.device`; the line is on the CPU.

    Raises:
        PolicyError: There is no such model or device, or its line is of another one.
    """

    def __init__(self, path: str | Path, *, trust_remote_code: bool = False, device: str = "auto") -> None:
        self.folder = Path(path)
        self.policy: Policy = load_frozen(path, trust_remote_code=trust_remote_code, device=find_device(device))
        width = int(self.policy.model.get_output_embeddings().weight.shape[1])  # type: ignore[operator]
        self.mean, self.scale = torch.zeros(width), torch.ones(width)
        self.weight, self.bias = torch.zeros(width), 0.0
        self._kept: OrderedDict[str, Tensor] = OrderedDict()
        head = self.folder / HEAD
        if head.is_file():
            self.load_state(json.loads(head.read_text()))

    async def score(self, text: str) -> float:
        """Return what the line says of a text, computed between two trainings of the line and never during one."""
        return await run_in_compute_thread(lambda: self.value(self.states([text])[0]))

    def value(self, state: Tensor) -> float:
        """What the line says of a state."""
        return float(((state - self.mean) / self.scale) @ self.weight + self.bias)

    @torch.no_grad()
    def states(self, texts: Sequence[str]) -> list[Tensor]:
        """[H] of each text: the mean of the model's last states over its tokens. What is longer than the model reads
        loses its beginning."""
        found = []
        for text in texts:
            key = hashlib.sha256(text.encode()).hexdigest()
            if key not in self._kept:
                ids = self.policy.tokenizer.encode(text, add_special_tokens=False)[-self.policy.context_length :]
                ids = ids or [self.policy.tokenizer.eos_token_id or 0]
                said = self.policy.model(
                    input_ids=torch.tensor([ids], device=self.policy.device), output_hidden_states=True
                )
                self._kept[key] = said.hidden_states[-1][0].float().mean(0).cpu()
                if len(self._kept) > _KEPT:
                    self._kept.popitem(last=False)
            self._kept.move_to_end(key)
            found.append(self._kept[key])
        return found

    def fit(
        self,
        pairs: Sequence[Pair] = (),
        singles: Sequence[tuple[str, bool]] = (),
        *,
        steps: int = 200,
        weight_decay: float = 1e-2,
        learning_rate: float = 0.05,
        scaled: bool = True,
    ) -> float:
        """Learn from pairs, −log σ(r⁺ − r⁻), and from single episodes, by their cross-entropy; the loss in the end.

        Args:
            scaled: Whether states are scaled anew to those seen here; not where it learns on.

        Raises:
            ValueError: There is nothing to learn from.

        Source: ARMAP 2025, arXiv:2502.12130 (pairs); Cobbe et al. 2021, arXiv:2110.14168 (single ones).
        """
        if not pairs and not singles:
            raise ValueError("nothing to learn from")
        better, worse = self.states([p.better for p in pairs]), self.states([p.worse for p in pairs])
        alone = self.states([text for text, _ in singles])
        if scaled:
            every = torch.stack([*better, *worse, *alone])
            self.mean, self.scale = every.mean(0), every.std(0, unbiased=False).clamp_min(1e-6)
        line = torch.nn.Linear(len(self.mean), 1)
        with torch.no_grad():
            line.weight.copy_(self.weight.unsqueeze(0))
            line.bias.fill_(self.bias)
        optimizer = torch.optim.AdamW(line.parameters(), lr=learning_rate, weight_decay=weight_decay)
        right = torch.tensor([float(yes) for _, yes in singles])
        loss = torch.tensor(0.0)
        for _ in range(steps):
            loss = torch.tensor(0.0)
            if pairs:
                gap = (torch.stack(better) - torch.stack(worse)) / self.scale
                loss = loss - torch.nn.functional.logsigmoid(gap @ line.weight[0]).mean()
            if singles:
                said = line((torch.stack(alone) - self.mean) / self.scale)[:, 0]
                loss = loss + torch.nn.functional.binary_cross_entropy_with_logits(said, right)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        self.weight, self.bias = line.weight[0].detach().clone(), line.bias.item()
        return loss.item()

    def accuracy(self, pairs: Sequence[Pair]) -> float:
        """The share of pairs it puts in their order, ties half; NaN of none."""
        if not pairs:
            return math.nan
        found = []
        for pair in pairs:
            better, worse = (self.value(state) for state in self.states([pair.better, pair.worse]))
            found.append(1.0 if better > worse else 0.5 if better == worse else 0.0)
        return sum(found) / len(found)

    def save(self) -> Path:
        """Write the line beside the model.

        Raises:
            SaveError: It could not be written.
        """
        write_text(self.folder / HEAD, json.dumps(self.state()))
        return self.folder / HEAD

    def state(self) -> dict[str, Any]:
        """The line, as JSON can hold it."""
        return {
            "mean": self.mean.tolist(),
            "scale": self.scale.tolist(),
            "weight": self.weight.tolist(),
            "bias": self.bias,
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """The line that was.

        Raises:
            PolicyError: It is of another model.
        """
        if len(state["weight"]) != len(self.weight):
            raise PolicyError(f"{self.folder / HEAD}: made for another model ({len(state['weight'])} numbers)")
        self.mean, self.scale = torch.tensor(state["mean"]), torch.tensor(state["scale"])
        self.weight, self.bias = torch.tensor(state["weight"]), float(state["bias"])
