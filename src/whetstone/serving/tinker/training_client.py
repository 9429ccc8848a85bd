"""State of one training client: LoRA adapters on the shared base model, their gradient and their optimizer.

Note:
    The losses are sums over tokens, as in the Tinker API. The gradients of all `forward_backward` calls since the last
    `optim_step` are added.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from whetstone.algorithms import TokenLoss
from whetstone.algorithms.objectives import cispo, clipped, gspo
from whetstone.algorithms.objectives.gspo import sequence_mean
from whetstone.chat.api.requests import RefusedError
from whetstone.errors import did_you_mean
from whetstone.learning.forward_passes import GradientRequest, LocalPasses, drop_gradient
from whetstone.learning.packing import MicroBatch
from whetstone.learning.token_outputs import TokenOutputs
from whetstone.policies import Policy, add_adapters
from whetstone.policies.shared_weights import clone_trainable
from whetstone.recipe import OptimizerSettings
from whetstone.serving.tinker.protobuf_format import TrainingDatum, TrainingRequest
from whetstone.tokens import Author, Tokens
from whetstone.trajectory import Segment

LORA_ALPHA = 32.0
"""LoRA alpha of all training clients."""
_ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
_MLP = ("gate_proj", "up_proj", "down_proj")
_OPTIMIZER = {"learning_rate": 1e-4, "beta1": 0.9, "beta2": 0.95, "eps": 1e-12, "weight_decay": 0.0}
Columns = Mapping[str, Tensor]
"""[A] inputs of a loss by name; `sequence` has the index of each token's example."""


def weighted_cross_entropy(logprobs: Tensor, columns: Columns) -> Tensor:
    """Compute −weight · log-prob of each token, [A]; custom losses of the client are sent as its weights."""
    return -columns["weights"] * logprobs


def importance_weighted(logprobs: Tensor, columns: Columns) -> Tensor:
    """Compute −ρ · advantage of each token, [A], with ρ the ratio to the sampler."""
    return -(logprobs - columns["logprobs"]).exp() * columns["advantages"]


def clipped_surrogate(
    logprobs: Tensor, columns: Columns, *, clip_low_threshold: float = 0.8, clip_high_threshold: float = 1.2
) -> Tensor:
    """Compute the clipped surrogate loss of each token, [A], by `objectives.clipped`.

    Args:
        logprobs: [A] log-probs of the model, with gradient.
        columns: `logprobs` of the sampler and `advantages`.
        clip_low_threshold: Lower bound of the ratio.
        clip_high_threshold: Upper bound of the ratio.
    """
    bounds = {"clip_low": 1 - clip_low_threshold, "clip_high": clip_high_threshold - 1}
    return clipped(logprobs, columns["logprobs"], columns["advantages"], **bounds).loss


def bounded_ratio(
    logprobs: Tensor, columns: Columns, *, clip_low_threshold: float = 0.8, clip_high_threshold: float = 1.2
) -> Tensor:
    """Compute the loss with a bounded ratio as weight, [A], by `objectives.cispo`.

    Args:
        logprobs: [A] log-probs of the model, with gradient.
        columns: `logprobs` of the sampler and `advantages`.
        clip_low_threshold: Lower bound of the ratio.
        clip_high_threshold: Upper bound of the ratio.
    """
    bounds = {"min_ratio": clip_low_threshold, "max_ratio": clip_high_threshold}
    return cispo(logprobs, columns["logprobs"], columns["advantages"], **bounds).loss


def sequence_clipped(
    logprobs: Tensor, columns: Columns, *, clip_low_threshold: float = 1 - 3e-4, clip_high_threshold: float = 1 + 4e-4
) -> Tensor:
    """Compute the loss of GSPO in its token form, [A], by `objectives.gspo`.

    The ratio of a sequence is exp(mean log-ratio of the tokens whose `sequence_ratio_mask` is not 0); all its tokens
    have this ratio.

    Args:
        logprobs: [A] log-probs of the model, with gradient.
        columns: `logprobs` of the sampler, `advantages` and `sequence_ratio_mask`.
        clip_low_threshold: Lower bound of the ratio; the default is that of the paper.
        clip_high_threshold: Upper bound of the ratio; the default is that of the paper.
    """
    detached, sequence = logprobs.detach(), columns["sequence"]
    in_ratio = (columns["sequence_ratio_mask"] != 0).to(logprobs)
    log_ratios = torch.where(in_ratio > 0, detached - columns["logprobs"], 0.0)
    mean = sequence_mean(log_ratios, sequence) / sequence_mean(in_ratio, sequence)
    # with equal log-ratios in a sequence, the mean over all its tokens is the mean over the mask
    return gspo(
        logprobs,
        detached - mean,
        columns["advantages"],
        sequence,
        torch.zeros_like(sequence),
        clip_low=1 - clip_low_threshold,
        clip_high=clip_high_threshold - 1,
    ).loss


def direct_reward(logprobs: Tensor, columns: Columns, *, beta: float) -> Tensor:
    """Compute the DRO loss of each token, [A]: −(ℓ · advantage − beta / 2 · (ℓ − ℓ_sampler)²).

    Args:
        logprobs: [A] log-probs ℓ of the model, with gradient.
        columns: `logprobs` of the sampler and `advantages`.
        beta: Weight of the penalty.

    Source: Richemond et al. 2024, arXiv:2405.19107, as the documentation of the Tinker API writes it.
    """
    return 0.5 * beta * (logprobs - columns["logprobs"]).square() - logprobs * columns["advantages"]


_CLIPS = ("clip_low_threshold", "clip_high_threshold")
_RL = ("logprobs", "advantages")
LOSSES: Mapping[str, tuple[Callable[..., Tensor], tuple[str, ...], tuple[str, ...]]] = {
    "cross_entropy": (weighted_cross_entropy, ("weights",), ()),
    "importance_sampling": (importance_weighted, _RL, ()),
    "ppo": (clipped_surrogate, _RL, _CLIPS),
    "cispo": (bounded_ratio, _RL, _CLIPS),
    "gspo": (sequence_clipped, (*_RL, "sequence_ratio_mask"), _CLIPS),
    "dro": (direct_reward, _RL, ("beta",)),
}
"""Function, required inputs and options of each loss, by its name in the client."""


@dataclass(slots=True)
class BatchLoss:
    """Loss of the examples of a request; collects the log-probs of all targets."""

    request: TrainingRequest
    """Request with the name and the options of the loss."""
    columns: Sequence[Mapping[str, Tensor]]
    """Per example, [A] inputs of the loss by name, of the targets that are the next input tokens."""
    logprobs: list[np.ndarray]
    """Per example, [N] log-probs of the targets; those of action tokens are written by the forward passes."""
    total: float = 0.0
    """Sum of the losses of the computed tokens."""

    def __call__(self, outputs: TokenOutputs, micro: MicroBatch) -> TokenLoss:
        """Return the loss of each target token of a micro-batch."""
        function, names, _ = LOSSES[self.request.loss]
        columns = {
            name: torch.cat([self.columns[i][name] for i in micro.indices]).to(outputs.logprobs) for name in names
        }
        counts = torch.tensor(micro.counts, device=outputs.logprobs.device)
        columns["sequence"] = torch.repeat_interleave(counts)
        for i, part in micro.by_segment(outputs.logprobs.detach()):
            self.logprobs[i][next_token_targets(self.request.data[i])] = part.float().cpu().numpy()
        loss = function(outputs.logprobs, columns, **self.request.config)
        self.total += loss.detach().double().sum().item()
        return TokenLoss(loss, {})


class TrainingModel:
    """Adapters, gradient and optimizer of one training client.

    Args:
        base: Served policy; its weights are shared and stay unchanged.
        rank: Rank of the adapters.
        seed: Random seed of their initialization.
        train_attn: Whether attention layers have adapters.
        train_mlp: Whether MLP layers have adapters.
    """

    def __init__(
        self, base: Policy, *, rank: int, seed: int = 0, train_attn: bool = True, train_mlp: bool = True
    ) -> None:
        names = {name.rpartition(".")[2] for name, _ in base.model.named_modules()}
        targets = [name for name in (*_ATTENTION * train_attn, *_MLP * train_mlp) if name in names]
        if not targets:
            raise RefusedError("create_model: lora_config selects no layer of this model; set train_attn or train_mlp")
        base.model.requires_grad_(False)
        model = clone_trainable(base.model)
        add_adapters(model, rank=rank, alpha=LORA_ALPHA, target_modules=targets, dora=False, seed=seed)
        self.rank, self.policy = rank, replace(base, model=model, critic=None)
        self._layers = {"train_attn": train_attn, "train_mlp": train_mlp}
        self.settings = OptimizerSettings()
        self.passes = LocalPasses(self.policy, self.settings)
        self.next_seq = 1
        """Number of the next request in the order of the client."""

    def forward_backward(self, request: TrainingRequest) -> tuple[list[np.ndarray], dict[str, float]]:
        """Compute the loss of a request, and add its gradient unless it is `forward_only`.

        Returns:
            [N] log-probs of the targets of each example, NaN if a target is not the next input token, and metrics.

        Raises:
            RefusedError: If the loss or its inputs are not supported.
        """
        segments = check_training_request(request, context_length=self.policy.context_length)
        logprobs = [np.full(len(datum.ids), np.nan, np.float32) for datum in request.data]
        loss = BatchLoss(request, [_loss_columns(request, datum) for datum in request.data], logprobs)
        flat = range(len(segments)) if request.forward_only else ()
        self.passes.gradient(GradientRequest(segments, loss, 1, flat=flat))
        return loss.logprobs, {"loss:sum": loss.total}

    def optim_step(self, params: Mapping[str, Any]) -> dict[str, float]:
        """Make one AdamW step from the added gradients, and drop them.

        Args:
            params: `learning_rate`, `beta1`, `beta2`, `eps`, `weight_decay` and `grad_clip_norm` (0: no clipping).

        Raises:
            RefusedError: If a parameter is unknown or not a number, or the gradient is not finite.
        """
        known = {**_OPTIMIZER, "grad_clip_norm": 0.0}
        passed = {name: value for name, value in params.items() if name != "type"}
        for name, value in passed.items():
            if name not in known:
                raise RefusedError(f"optim_step: {name} is not supported{did_you_mean(name, known)}")
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise RefusedError(f"optim_step: {name} must be a number, got {value!r}")
        values = {**known, **passed}
        parameters = self.policy.trainable_parameters()
        max_norm = values["grad_clip_norm"] or math.inf
        norm = float(torch.nn.utils.clip_grad_norm_(parameters, max_norm))
        if not math.isfinite(norm):
            drop_gradient(self.policy)
            raise RefusedError("optim_step: the gradient is not finite, and no step was made; check the loss inputs")
        for optimizer in self.passes.optimizers.all_optimizers:
            for group in optimizer.param_groups:
                group["lr"], group["betas"] = values["learning_rate"], (values["beta1"], values["beta2"])
                group["eps"], group["weight_decay"] = values["eps"], values["weight_decay"]
            optimizer.step()
        drop_gradient(self.policy)
        return {"grad_norm:mean": norm}

    def state_dict(self) -> dict[str, Any]:
        """Return copies of the adapters and of the optimizer state."""
        weights = {n: p.detach().clone() for n, p in self.policy.model.named_parameters() if p.requires_grad}
        state = [optimizer.state_dict() for optimizer in self.passes.optimizers.all_optimizers]
        return {"rank": self.rank, "layers": self._layers, "weights": weights, "optimizers": _copy_state(state)}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any], *, optimizer: bool) -> None:
        """Restore the adapters of `state_dict`, and the optimizer state if `optimizer`; otherwise it is reset."""
        for name, saved, value in (("rank", state["rank"], self.rank), ("layers", state["layers"], self._layers)):
            if saved != value:
                raise RefusedError(f"load_weights: the state has {name} {saved}, and the model {value}")
        own = dict(self.policy.model.named_parameters())
        for name, value in state["weights"].items():
            own[name].copy_(value)
        drop_gradient(self.policy)
        self.passes = LocalPasses(self.policy, self.settings)
        if optimizer:
            for each, saved in zip(self.passes.optimizers.all_optimizers, state["optimizers"], strict=True):
                each.load_state_dict(_copy_state(saved))

    def snapshot_policy(self) -> Policy:
        """Return a policy with a copy of the adapters, for a sampler; the base is shared."""
        return replace(self.policy, model=clone_trainable(self.policy.model).requires_grad_(False))


def restore_training_model(base: Policy, state: Mapping[str, Any], *, optimizer: bool) -> TrainingModel:
    """Return a training client with the adapters of `TrainingModel.state_dict`, and its optimizer if `optimizer`."""
    model = TrainingModel(base, rank=state["rank"], **state["layers"])
    model.load_state_dict(state, optimizer=optimizer)
    return model


def check_training_request(request: TrainingRequest, *, context_length: int) -> list[Segment]:
    """Check a request, and convert its examples into segments whose targets are the action tokens.

    A target other than the next input token, such as padding, is no action token; its inputs of the loss must be 0.

    Args:
        request: Decoded request.
        context_length: Maximum number of input tokens of an example.

    Raises:
        RefusedError: If the loss, an option or an input is not supported.
    """
    if request.problem:
        raise RefusedError(f"forward_backward: {request.problem}")
    if request.loss not in LOSSES:
        raise RefusedError(
            f"forward_backward: loss_fn {request.loss} is not supported; this server has {', '.join(LOSSES)}, and "
            "forward_backward_custom"
        )
    _, names, options = LOSSES[request.loss]
    for name, value in request.config.items():
        if name not in options or not isinstance(value, float):
            allowed = ", ".join(options) or "none"
            raise RefusedError(f"forward_backward: {request.loss} has no option {name}={value}; allowed: {allowed}")
    if request.loss == "dro" and "beta" not in request.config:
        raise RefusedError('forward_backward: dro requires loss_fn_config={"beta": …}, the weight of its penalty')
    if not request.data:
        raise RefusedError("forward_backward: has no example; send at least one datum")
    segments = []
    for number, datum in enumerate(request.data):
        place, length = f"forward_backward: data[{number}]", len(datum.ids)
        if not 0 < length < context_length:
            raise RefusedError(f"{place} has {length} input tokens; this model takes 1 to {context_length - 1}")
        unknown = [name for name in datum.inputs if name not in ("target_tokens", *names, "mask")]
        missing = [name for name in ("target_tokens", *names) if name not in datum.inputs and name != "weights"]
        if missing or unknown:
            problem = f"lacks {missing[0]}" if missing else f"has {unknown[0]}, which {request.loss} does not read"
            raise RefusedError(f"{place} {problem}; its inputs are target_tokens, {', '.join(names)}")
        for name, values in datum.inputs.items():
            if values.shape != (length,):
                raise RefusedError(f"{place} {name} has shape {list(values.shape)}; expected [{length}]")
        if request.loss == "gspo" and not datum.inputs["sequence_ratio_mask"].any():
            raise RefusedError(f"{place} sequence_ratio_mask is 0 everywhere; set 1 for the sampled tokens")
        is_next = next_token_targets(datum)
        weights = [datum.inputs.get(name, np.ones(length)) for name in names if name != "logprobs"]
        other = ~is_next & (np.any(weights, axis=0) | (request.loss == "dro"))
        if other.any():
            raise RefusedError(
                f"{place} target_tokens[{other.argmax()}] is not the next input token, which is supported only with "
                f"weight and advantage 0, and not in dro; shift the input by one"
            )
        segments.append(_segment((*datum.ids, datum.inputs["target_tokens"][-1]), number, is_next.tolist()))
    return segments


def next_token_targets(datum: TrainingDatum) -> np.ndarray:
    """Return whether each target is the next input token, [N]; the last target always is."""
    return np.array([*(datum.inputs["target_tokens"][:-1] == np.array(datum.ids[1:])), True])


def _segment(ids: Sequence[int], number: int, mask: Sequence[bool] | None = None) -> Segment:
    count = len(ids)
    empty = (math.nan,) * count
    tokens = Tokens(tuple(map(int, ids)), (Author.POLICY,) * count, empty, (-1,) * count, empty)
    return Segment(f"datum-{number}", 0, tokens, (False, *(mask or (True,) * (count - 1))), (0,) * count)


def _loss_columns(request: TrainingRequest, datum: TrainingDatum) -> dict[str, Tensor]:
    inputs = {"weights": np.ones(len(datum.ids), np.float32), **datum.inputs}
    mask = next_token_targets(datum)
    return {name: torch.tensor(inputs[name][mask], dtype=torch.float32) for name in LOSSES[request.loss][1]}


def _copy_state(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {name: _copy_state(each) for name, each in value.items()}
    return [_copy_state(each) for each in value] if isinstance(value, list) else value
