"""Forward and backward passes that several ranks compute: requests to the ranks, and their combined results.

Note:
    Components that sample, save or change the weights use the full copy in this process. It is updated after every
    step, and ranks receive weights that another component changed.
"""

from __future__ import annotations

import copy
import tempfile
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from whetstone.errors import LearnerError
from whetstone.learning.flops import Flops
from whetstone.learning.forward_passes import GradientRequest, ReadRequest, build_forward, check_token_ids
from whetstone.learning.metric_accumulator import MetricAccumulator
from whetstone.learning.model_trainer import SMALLEST_BUDGET
from whetstone.learning.optimizer import SHARDS, Optimizers
from whetstone.learning.packing import PackedPiece
from whetstone.learning.token_outputs import Layout
from whetstone.policies import CPU, Policy, on_cpu
from whetstone.recipe import OptimizerSettings
from whetstone.scaling.distributed_learner.load_balancing import Partition, compute_balance, partition_segments
from whetstone.scaling.distributed_learner.messages import on_device
from whetstone.scaling.distributed_learner.processes import LearnerProcesses, OutOfMemory, threads_per_process
from whetstone.scaling.distributed_learner.shard_passes import Frozen, OptimizerStepResult, Pass, ShardedLoss
from whetstone.trajectory import Segment


@dataclass(frozen=True, slots=True)
class Share:
    """Passes that one group of ranks computes, with the segments that these passes need."""

    places: tuple[int, ...]
    """Indices of the group's segments among all segments."""
    passes: tuple[Pass, ...]
    """Passes of the group, with indices into `places`."""

    def segments(self, of: Sequence[Segment]) -> list[Segment]:
        """Return the group's segments, selected from all segments."""
        return [of[i] for i in self.places]


class GroupPasses:
    """Forward passes of a policy that several ranks compute; implements `ForwardPasses`.

    Args:
        processes: Rank processes.
        policy: Full copy of the policy, which receives the weights after every step.
        settings: Settings of the optimizer, the same as for a learner in one process.
        together: Number of ranks that compute each pass together; it divides the number of ranks.
        frozen: Frozen models by name, `reference` and `teacher`.
        staging: Folder to which ranks write the optimizer state, and from which a checkpoint takes it.
    """

    def __init__(
        self,
        processes: LearnerProcesses,
        policy: Policy,
        settings: OptimizerSettings,
        *,
        together: int = 1,
        frozen: Mapping[str, Frozen],
        staging: Path | None,
    ) -> None:
        self.processes, self.policy, self._frozen, self._together = processes, policy, frozen, together
        self._groups = processes.count // together
        self._begin: dict[str, Any] = {"settings": settings, "together": together}
        self.settings = settings.model_copy(update={"optimizer_offload": False})
        self.optimizers = GroupOptimizers(policy, self.settings, processes, staging)
        self.token_budget = settings.micro_batch_tokens
        self.device = next(policy.model.parameters()).device
        self._forward, self._flops = (
            build_forward(policy.model, policy, self.settings),
            Flops(policy.model, policy.dtype),
        )
        self._peak = 0.0
        self._measured: dict[str, float] = {}
        """Balance and seconds of the update so far."""
        self._start([None] * processes.count)

    @property
    def layout(self) -> Layout:
        """Return the layout of micro-batches; see `ForwardPasses.layout`."""
        return self._forward.way.layout

    @property
    def shares(self) -> bool:
        """Return whether shared prefixes are computed once; see `ForwardPasses.shares`."""
        return self._forward.shares

    def close(self) -> None:
        """End the rank processes."""
        self.processes.close()

    def gradient(self, request: GradientRequest) -> MetricAccumulator:
        """Compute the gradient of an update on all ranks; see `ForwardPasses.gradient`."""
        shares, rounds = self._shares(request.segments, request.flat, sloped=True)
        loss_of = request.loss_of
        divisible = loss_of if isinstance(loss_of, ShardedLoss) else None
        each = []
        for share in shares:
            part = on_device(divisible.part(share.places), CPU) if divisible is not None else loss_of
            segments = share.segments(request.segments)
            group_request = replace(request, segments=segments, loss_of=part, flat=(), watch=None)
            each.append({"request": group_request, "passes": share.passes})
        began = time.perf_counter()
        answers = self._request(
            "gradient",
            self._to_ranks(each),
            token_budget=self.token_budget,
            critic_buffers=self._critic_buffers(),
        )
        slowest = max(seconds for _, _, seconds in answers)
        self._measured = {
            "scale/learner_balance": compute_balance(rounds),
            "scale/learner_seconds": slowest,
            "scale/learner_transfer_seconds": time.perf_counter() - began - slowest,
        }
        tally = MetricAccumulator()
        for share, (of_group, statistics, _) in zip(shares, self._per_group(answers), strict=True):
            tally.merge_sums(of_group)
            if divisible is not None:
                divisible.add_statistics(share.places, statistics)
        return tally

    def read(self, request: ReadRequest) -> dict[str, list[Tensor]]:
        """Compute columns such as log-probs on all ranks, without a gradient; see `ForwardPasses.read`."""
        shares, _ = self._shares(request.segments, ())
        each = [
            {"request": replace(request, segments=share.segments(request.segments)), "passes": share.passes}
            for share in shares
        ]
        answers = self._request("read", self._to_ranks(each), critic_buffers=self._critic_buffers())
        nothing = [torch.empty(0, device=self.device)] * len(request.segments)
        columns: dict[str, list[Tensor]] = {column: list(nothing) for column in request.columns}
        for share, of_group in zip(shares, self._per_group(answers), strict=True):
            for column, of_segments in columns.items():
                for place, part in zip(share.places, of_group[column], strict=True):
                    if len(part):
                        of_segments[place] = part.to(self.device)
        return columns

    def apply(self) -> dict[str, float]:
        """Make an optimizer step on all ranks and copy the new weights; see `ForwardPasses.apply`.

        The metrics include the balance between ranks and the seconds of computation and transfer.
        """
        optimizers, measured = self.optimizers, self._measured
        began = time.perf_counter()
        names = ("critic_only", "done", "share", "rate_scale")
        answers = self._request_once("apply", **{name: getattr(optimizers, name) for name in names})
        stepped: OptimizerStepResult = answers[0]
        weights = stepped.weights
        if weights is not None:
            self._take(weights)
        self._peak = max(answer.peak_gib for answer in answers)
        slowest = max(answer.seconds for answer in answers)
        elapsed = time.perf_counter() - began
        return stepped.metrics | {
            "scale/learner_balance": measured["scale/learner_balance"],
            "scale/learner_seconds": measured["scale/learner_seconds"] + slowest,
            "scale/learner_transfer_seconds": measured["scale/learner_transfer_seconds"] + elapsed - slowest,
        }

    def norm(self) -> float:
        """Return the norm of the gradient; see `ForwardPasses.norm`."""
        norm: float = self.processes.ask("norm")[0]
        return norm

    def drop(self) -> None:
        """Discard the gradient on all ranks; see `ForwardPasses.drop`."""
        if not self.processes.closed:
            self.processes.ask("drop")

    def take_reference(self) -> None:
        """Send the weights of the reference model to all ranks; see `ForwardPasses.take_reference`."""
        weights = [parameter.detach().cpu() for parameter in self._frozen["reference"].model.parameters()]
        self.processes.ask("put_reference", weights=weights)

    def peak_memory(self) -> float:
        """Return the peak memory of the ranks in GiB; see `ForwardPasses.peak_memory`."""
        return self._peak

    def utilization(self, flops: int, seconds: float) -> float:
        """Return the model FLOPs utilization of the ranks' devices; see `ForwardPasses.utilization`."""
        devices = self.processes.count if self.device.type != "cpu" else 1  # ranks on CPUs share this machine's
        return self._flops.utilization(flops, seconds) / devices

    def _start(self, states: Sequence[Any]) -> None:
        """Have all ranks load their shards of the current policy."""
        meet = self.processes.ask("get_rendezvous_address")[0]
        critic = copy.deepcopy(self.policy.critic).cpu() if self.policy.critic is not None else None
        policy = Policy(on_cpu(self.policy.model), None, critic, self.policy.dtype)
        threads = None if self.processes.joined else threads_per_process(self.processes.count)
        common: dict[str, Any] = {"policy": policy, "device": self.device.type, "threads": threads}
        frozen = {name: replace(each, model=on_cpu(each.model)) for name, each in self._frozen.items()}
        common["frozen"] = frozen
        self._request_once("begin", [{"own_state": state} for state in states], meet=meet, **common, **self._begin)

    def _shares(
        self, segments: Sequence[Segment], flat: Collection[int], *, sloped: bool = False
    ) -> tuple[list[Share], list[list[Partition]]]:
        """Divide the segments between the groups of ranks, with the same number of passes for each.

        Returns:
            The passes of each group, and the rounds of all groups.
        """
        check_token_ids(segments, self.policy)
        still = set(flat)
        passes: list[list[Pass]] = [[] for _ in range(self._groups)]
        everything: list[list[Partition]] = []
        for places, has_gradient in (
            ([i for i in range(len(segments)) if i not in still], sloped),
            (sorted(still), False),
        ):
            for row in self._rounds([segments[i] for i in places]):
                everything.append(row)
                for group, (own_places, counts) in enumerate(pad_round(row, segments=segments, places=places)):
                    passes[group].append(Pass(own_places, has_gradient, counts))
        return [assign_passes(of_group) for of_group in passes], everything

    def _to_ranks(self, of_groups: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """Return the arguments of each rank; ranks of a group have equal arguments."""
        return [arguments for arguments in of_groups for _ in range(self._together)]

    def _per_group(self, answers: Sequence[Any]) -> Sequence[Any]:
        """Return the response of the first rank of each group; those of the other ranks are equal."""
        return answers[:: self._together]

    def _rounds(self, segments: Sequence[Segment]) -> list[list[Partition]]:
        share = self.settings.prefix_sharing and self.shares
        return partition_segments(segments, self._groups, token_budget=self.token_budget, share=share, cost=self._cost)

    def _cost(self, piece: PackedPiece) -> float:
        return self._flops.of_sizes(piece.tokens, piece.pairs)

    def _critic_buffers(self) -> dict[str, Tensor]:
        critic = self.policy.critic
        slow = critic is not None and critic.slow
        return {name: each.cpu() for name, each in critic.named_buffers()} if critic is not None and slow else {}

    def _request(self, name: str, each: Sequence[Mapping[str, Any]], **common: Any) -> list[Any]:
        """Send a request to all ranks; after an out-of-memory error the ranks restart, and the caller repeats with less
        memory.
        """
        try:
            return self.processes.ask(name, each, **common)
        except OutOfMemory as short:
            if self.token_budget <= SMALLEST_BUDGET:  # nothing would be asked again
                self.close()
            else:
                self._start(short.states)
            raise

    def _request_once(self, name: str, each: Sequence[Mapping[str, Any]] | None = None, **common: Any) -> list[Any]:
        """Send a request whose memory does not depend on the size of passes.

        Raises:
            LearnerError: Memory did not suffice. All processes are ended.
        """
        try:
            return self.processes.ask(name, each, **common)
        except OutOfMemory as short:
            self.close()
            raise LearnerError(
                f"{short}: its shard of weights and optimizer does not fit; increase scale.learner_processes "
                "for smaller shards"
            ) from None

    @torch.no_grad()
    def _take(self, weights: Sequence[Tensor]) -> None:
        for parameter, now in zip(self.policy.trainable_parameters(), weights, strict=True):
            parameter.copy_(now)


class GroupOptimizers(Optimizers):
    """Schedule of a stage whose optimizers are in the rank processes; see `Optimizers`.

    Args:
        policy: Full copy of the policy.
        settings: Settings of the optimizer.
        processes: Rank processes.
        staging: Folder to which ranks write the optimizer state.
    """

    def __init__(
        self, policy: Policy, settings: OptimizerSettings, processes: LearnerProcesses, staging: Path | None
    ) -> None:
        super().__init__(policy, settings)
        self._policy, self._processes, self._staging = policy, processes, staging

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint; ranks write their shards to files, which the checkpoint takes."""
        if self._staging is not None:
            self._staging.mkdir(parents=True, exist_ok=True)
        folder = tempfile.mkdtemp(prefix=".shards-", dir=self._staging)
        groups = self._processes.ask("save", folder=folder)[0]
        return {"done": self.done, "share": self.share, "optimizers": groups, SHARDS: folder}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state that `state_dict` returned, with any number of processes."""
        self.done, self.share = state["done"], state.get("share", 0.0)
        rank_state = {name: state[name] for name in ("optimizers", SHARDS) if name in state}
        self._processes.ask("load", state=rank_state)

    def refresh(self) -> None:
        """Send the full copy's weights to the ranks, after another component changed them."""
        self._processes.ask("put_weights", weights=[p.detach().cpu() for p in self._policy.trainable_parameters()])


def pad_round(
    row: Sequence[Partition], *, segments: Sequence[Segment], places: Sequence[int]
) -> list[tuple[tuple[int, ...], bool]]:
    """Return (segments, whether they count) of each rank in a round.

    A rank without segments gets a dummy pass on the shortest segment of another rank, so that no rank waits forever.

    Args:
        row: Segments of each rank as indices into `places`.
        segments: All segments of the request.
        places: Indices of the segments that the round divides.
    """
    places_by_rank = [tuple(places[i] for i in slot.indices) for slot in row]
    shortest = min((i for slot in places_by_rank for i in slot), key=lambda i: (len(segments[i]), i))
    return [(slot, True) if slot else ((shortest,), False) for slot in places_by_rank]


def assign_passes(passes: Sequence[Pass]) -> Share:
    """Return the passes of a group with indices into the segments that the group receives."""
    places = tuple(sorted({i for each in passes for i in each.places}))
    at = {place: k for k, place in enumerate(places)}
    return Share(places, tuple(replace(each, places=tuple(at[i] for i in each.places)) for each in passes))
