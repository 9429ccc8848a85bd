"""Reward model: a linear head on the mean hidden state of a frozen model, trained on pairs of episodes.

    transcript → tokens → mean of the last hidden states → linear head → score

The head is fitted to pairs (better, worse) with the Bradley-Terry loss, or to single right and wrong episodes. It is
small, so it can be trained during a run, and it is saved in the run's checkpoint.

Note: Better and worse episodes must differ in quality, not in their author. Use pairs of the same task, ordered by a
reliable rule.
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
from whetstone.inference import frozen_member
from whetstone.policies import find_device

HEAD = "reward_head.json"
"""File name of the trained head in the model folder."""
_KEPT = 4096


@dataclass(frozen=True, slots=True)
class EpisodePair:
    """Preference pair: a better and a worse episode of the same task, as texts."""

    better: str
    worse: str


class RewardModel:
    """Reward model: a frozen language model with a linear head on its mean last hidden state.

    Args:
        path: Hugging Face model folder; a trained head is in it as `reward_head.json`.
        trust_remote_code: Whether to run code that comes with the model.
        device: Device of the model, see `policy.device`; the head is on the CPU.

    Raises:
        PolicyError: If the model or device does not exist, or the head belongs to another model.
    """

    def __init__(self, path: str | Path, *, trust_remote_code: bool = False, device: str = "auto") -> None:
        self.folder = Path(path)
        self.member = frozen_member(
            "reward_model", path, trust_remote_code=trust_remote_code, device=find_device(device)
        )
        self.policy = self.member.policy
        width = int(self.policy.model.get_output_embeddings().weight.shape[1])  # type: ignore[operator]
        self.mean, self.scale = torch.zeros(width), torch.ones(width)
        self.weight, self.bias = torch.zeros(width), 0.0
        self._cache: OrderedDict[str, Tensor] = OrderedDict()
        head = self.folder / HEAD
        if head.is_file():
            self.load_state(json.loads(head.read_text()))

    async def score(self, text: str) -> float:
        """Compute the score of a text in the compute thread, so that the head is not trained at the same time."""
        return await run_in_compute_thread(lambda: self.score_state(self.compute_states([text])[0]))

    def score_state(self, state: Tensor) -> float:
        """Compute the score of a hidden state, [H]: the head on the normalized state."""
        return float(((state - self.mean) / self.scale) @ self.weight + self.bias)

    @torch.no_grad()
    def compute_states(self, texts: Sequence[str]) -> list[Tensor]:
        """Compute the mean last hidden state, [H], of each text.

        States are cached. A text that exceeds the context length loses its start.
        """
        states = []
        for text in texts:
            key = hashlib.sha256(text.encode()).hexdigest()
            if key not in self._cache:
                ids = self.policy.tokenizer.encode(text, add_special_tokens=False)[-self.policy.context_length :]
                ids = ids or [self.policy.tokenizer.eos_token_id or 0]
                outputs = self.policy.model(
                    input_ids=torch.tensor([ids], device=self.policy.device), output_hidden_states=True
                )
                self._cache[key] = outputs.hidden_states[-1][0].float().mean(0).cpu()
                if len(self._cache) > _KEPT:
                    self._cache.popitem(last=False)
            self._cache.move_to_end(key)
            states.append(self._cache[key])
        return states

    def fit(
        self,
        pairs: Sequence[EpisodePair] = (),
        singles: Sequence[tuple[str, bool]] = (),
        *,
        steps: int = 200,
        weight_decay: float = 1e-2,
        learning_rate: float = 0.05,
        scaled: bool = True,
    ) -> float:
        """Train the head on pairs, −log σ(r⁺ − r⁻), and on single episodes, by cross-entropy; return the final loss.

        Args:
            pairs: Preference pairs.
            singles: Pairs (text, whether the episode is right).
            steps: Number of AdamW steps; each uses all data.
            weight_decay: Weight decay of AdamW.
            learning_rate: Learning rate of AdamW.
            scaled: Whether to fit the normalization of states to this data; False to continue training.

        Raises:
            ValueError: If there are neither pairs nor singles.

        Source: ARMAP 2025, arXiv:2502.12130 (pairs); Cobbe et al. 2021, arXiv:2110.14168 (single ones).
        """
        if not pairs and not singles:
            raise ValueError("there are no examples to train on; pass at least one pair or single episode")
        better, worse = self.compute_states([p.better for p in pairs]), self.compute_states([p.worse for p in pairs])
        single_states = self.compute_states([text for text, _ in singles])
        if scaled:
            every = torch.stack([*better, *worse, *single_states])
            self.mean, self.scale = every.mean(0), every.std(0, unbiased=False).clamp_min(1e-6)
        head = torch.nn.Linear(len(self.mean), 1)
        with torch.no_grad():
            head.weight.copy_(self.weight.unsqueeze(0))
            head.bias.fill_(self.bias)
        optimizer = torch.optim.AdamW(head.parameters(), lr=learning_rate, weight_decay=weight_decay)
        right = torch.tensor([float(yes) for _, yes in singles])
        loss = torch.tensor(0.0)
        for _ in range(steps):
            loss = torch.tensor(0.0)
            if pairs:
                gap = (torch.stack(better) - torch.stack(worse)) / self.scale
                loss = loss - torch.nn.functional.logsigmoid(gap @ head.weight[0]).mean()
            if singles:
                logits = head((torch.stack(single_states) - self.mean) / self.scale)[:, 0]
                loss = loss + torch.nn.functional.binary_cross_entropy_with_logits(logits, right)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        self.weight, self.bias = head.weight[0].detach().clone(), head.bias.item()
        return loss.item()

    def pair_accuracy(self, pairs: Sequence[EpisodePair]) -> float:
        """Compute the fraction of pairs whose better episode scores higher; ties count half; NaN without pairs."""
        if not pairs:
            return math.nan
        results = []
        for pair in pairs:
            better, worse = (self.score_state(state) for state in self.compute_states([pair.better, pair.worse]))
            results.append(1.0 if better > worse else 0.5 if better == worse else 0.0)
        return sum(results) / len(results)

    def save(self) -> Path:
        """Save the head in the model folder and return its path.

        Raises:
            SaveError: If the file cannot be written.
        """
        write_text(self.folder / HEAD, json.dumps(self.state()))
        return self.folder / HEAD

    def state(self) -> dict[str, Any]:
        """Return head and normalization as JSON values."""
        return {
            "mean": self.mean.tolist(),
            "scale": self.scale.tolist(),
            "weight": self.weight.tolist(),
            "bias": self.bias,
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore head and normalization.

        Raises:
            PolicyError: If the head belongs to a model with another hidden size.
        """
        if len(state["weight"]) != len(self.weight):
            raise PolicyError(f"{self.folder / HEAD}: belongs to another model ({len(state['weight'])} weights)")
        self.mean, self.scale = torch.tensor(state["mean"]), torch.tensor(state["scale"])
        self.weight, self.bias = torch.tensor(state["weight"]), float(state["bias"])
