"""What is a trainer whose passes are computed by several ranks? What is asked of them, and what they say added up.

Easy to get wrong: whoever samples, saves or moves the weights does so with the whole copy in this process. It is
brought up to date behind every step, and ranks are told where something else changed it.
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
from whetstone.learning.forward_passes import GradientRequest, ReadRequest, check_ids, forward_of
from whetstone.learning.model_trainer import SMALLEST_BUDGET
from whetstone.learning.optimizer import SHARDS, Optimizers
from whetstone.learning.packing import Piece
from whetstone.learning.resources import Flops
from whetstone.learning.tally import Tally
from whetstone.learning.token_outputs import Layout
from whetstone.policies import CPU, Policy, on_cpu
from whetstone.recipe import OptimizerSettings
from whetstone.scaling.learners.dealing import Dealt, balance, rounds_of
from whetstone.scaling.learners.messages import on_device
from whetstone.scaling.learners.processes import LearnerProcesses, OutOfMemory, threads_of
from whetstone.scaling.learners.shard_passes import Divisible, Frozen, Pass, Stepped
from whetstone.trajectory import Segment


@dataclass(frozen=True, slots=True)
class Share:
    """What one group of ranks computes of some segments."""

    places: tuple[int, ...]
    """Where its segments stand among all."""
    passes: tuple[Pass, ...]
    """By the places of segments in `places`."""

    def segments(self, of: Sequence[Segment]) -> list[Segment]:
        """Its segments."""
        return [of[i] for i in self.places]


class GroupPasses:
    """Forward passes that several ranks compute; see `ForwardPasses`.

    Args:
        processes: The ranks.
        policy: A whole copy, which receives the weights after every step.
        settings: Same as for a learner in one process.
        together: Number of ranks that compute each pass together; it divides the number of ranks.
        frozen: Frozen models by `reference` and `teacher`.
        staging: Folder to which ranks write the optimizer's state, from where a checkpoint takes it.
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
        self._forward, self._flops = forward_of(policy.model, policy, self.settings), Flops(policy.model, policy.dtype)
        self._peak = 0.0
        self._measured: dict[str, float] = {}
        """Balance and seconds of the update so far."""
        self._start([None] * processes.count)

    @property
    def layout(self) -> Layout:
        """See `ForwardPasses.layout`."""
        return self._forward.way.layout

    @property
    def shares(self) -> bool:
        """See `ForwardPasses.shares`."""
        return self._forward.shares

    def close(self) -> None:
        """End the processes."""
        self.processes.close()

    def gradient(self, request: GradientRequest) -> Tally:
        """See `ForwardPasses.gradient`."""
        shares, rounds = self._shares(request.segments, request.flat, sloped=True)
        loss_of = request.loss_of
        divisible = loss_of if isinstance(loss_of, Divisible) else None
        each = []
        for share in shares:
            part = on_device(divisible.part(share.places), CPU) if divisible is not None else loss_of
            segments = share.segments(request.segments)
            mine = replace(request, segments=segments, loss_of=part, flat=(), watch=None)
            each.append({"request": mine, "passes": share.passes})
        began = time.perf_counter()
        answers = self._asked(
            "gradient",
            self._to_ranks(each),
            token_budget=self.token_budget,
            critic_buffers=self._critic_buffers(),
        )
        slowest = max(seconds for _, _, seconds in answers)
        self._measured = {
            "scale/learner_balance": balance(rounds),
            "scale/learner_seconds": slowest,
            "scale/learner_transfer_seconds": time.perf_counter() - began - slowest,
        }
        tally = Tally()
        for share, (of_group, found, _) in zip(shares, self._once_a_group(answers), strict=True):
            tally.merge(of_group)
            if divisible is not None:
                divisible.take(share.places, found)
        return tally

    def read(self, request: ReadRequest) -> dict[str, list[Tensor]]:
        """See `ForwardPasses.read`."""
        shares, _ = self._shares(request.segments, ())
        each = [
            {"request": replace(request, segments=share.segments(request.segments)), "passes": share.passes}
            for share in shares
        ]
        answers = self._asked("read", self._to_ranks(each), critic_buffers=self._critic_buffers())
        nothing = [torch.empty(0, device=self.device)] * len(request.segments)
        found: dict[str, list[Tensor]] = {column: list(nothing) for column in request.columns}
        for share, of_group in zip(shares, self._once_a_group(answers), strict=True):
            for column, of_segments in found.items():
                for place, part in zip(share.places, of_group[column], strict=True):
                    if len(part):
                        of_segments[place] = part.to(self.device)
        return found

    def apply(self) -> dict[str, float]:
        """See `ForwardPasses.apply`; the metrics include how the work was divided and what that cost."""
        optimizers, measured = self.optimizers, self._measured
        began = time.perf_counter()
        answers = self._once("apply", critic_only=optimizers.critic_only, done=optimizers.done, share=optimizers.share)
        stepped: Stepped = answers[0]
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
        """See `ForwardPasses.norm`."""
        norm: float = self.processes.ask("norm")[0]
        return norm

    def drop(self) -> None:
        """See `ForwardPasses.drop`."""
        if not self.processes.closed:
            self.processes.ask("drop")

    def take_reference(self) -> None:
        """See `ForwardPasses.take_reference`."""
        weights = [parameter.detach().cpu() for parameter in self._frozen["reference"].model.parameters()]
        self.processes.ask("put_reference", weights=weights)

    def peak_memory(self) -> float:
        """See `ForwardPasses.peak_memory`."""
        return self._peak

    def utilization(self, flops: int, seconds: float) -> float:
        """See `ForwardPasses.utilization`."""
        devices = self.processes.count if self.device.type != "cpu" else 1  # ranks on CPUs share this machine's
        return self._flops.utilization(flops, seconds) / devices

    def _start(self, kept: Sequence[Any]) -> None:
        """Have all ranks take their share of what there is."""
        meet = self.processes.ask("rendezvous")[0]
        critic = copy.deepcopy(self.policy.critic).cpu() if self.policy.critic is not None else None
        policy = Policy(on_cpu(self.policy.model), None, critic, self.policy.dtype)
        threads = None if self.processes.joined else threads_of(self.processes.count)
        given: dict[str, Any] = {"policy": policy, "device": self.device.type, "threads": threads}
        frozen = {name: replace(each, model=on_cpu(each.model)) for name, each in self._frozen.items()}
        given["frozen"] = frozen
        self._once("begin", [{"own_state": state} for state in kept], meet=meet, **given, **self._begin)

    def _shares(
        self, segments: Sequence[Segment], flat: Collection[int], *, sloped: bool = False
    ) -> tuple[list[Share], list[list[Dealt]]]:
        """Return what each group computes, all in the same number of passes, and the rounds of all."""
        check_ids(segments, self.policy)
        still = set(flat)
        passes: list[list[Pass]] = [[] for _ in range(self._groups)]
        everything: list[list[Dealt]] = []
        for places, has_gradient in (
            ([i for i in range(len(segments)) if i not in still], sloped),
            (sorted(still), False),
        ):
            for row in self._rounds([segments[i] for i in places]):
                everything.append(row)
                for group, (mine, counts) in enumerate(with_shows(row, segments=segments, places=places)):
                    passes[group].append(Pass(mine, has_gradient, counts))
        return [share_of(of_group) for of_group in passes], everything

    def _to_ranks(self, of_groups: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """What each rank is given: all of a group the same."""
        return [given for given in of_groups for _ in range(self._together)]

    def _once_a_group(self, answers: Sequence[Any]) -> Sequence[Any]:
        """Of the ranks of a group, which say the same, what the first says."""
        return answers[:: self._together]

    def _rounds(self, segments: Sequence[Segment]) -> list[list[Dealt]]:
        share = self.settings.prefix_sharing and self.shares
        return rounds_of(segments, self._groups, token_budget=self.token_budget, share=share, cost=self._cost)

    def _cost(self, piece: Piece) -> float:
        return self._flops.of_sizes(piece.tokens, piece.pairs)

    def _critic_buffers(self) -> dict[str, Tensor]:
        critic = self.policy.critic
        slow = critic is not None and critic.slow
        return {name: each.cpu() for name, each in critic.named_buffers()} if critic is not None and slow else {}

    def _asked(self, name: str, each: Sequence[Mapping[str, Any]], **all_alike: Any) -> list[Any]:
        """What ranks answer to what may be asked again."""
        try:
            return self.processes.ask(name, each, **all_alike)
        except OutOfMemory as short:
            if self.token_budget <= SMALLEST_BUDGET:  # nothing would be asked again
                self.close()
            else:
                self._start(short.kept)
            raise

    def _once(self, name: str, each: Sequence[Mapping[str, Any]] | None = None, **all_alike: Any) -> list[Any]:
        """What ranks answer to what needs its memory, however small passes are.

        Raises:
            LearnerError: It did not suffice. All are ended.
        """
        try:
            return self.processes.ask(name, each, **all_alike)
        except OutOfMemory as short:
            self.close()
            raise LearnerError(
                f"{short}: its share of weights and optimiser does not fit; a larger scale.learner_processes has "
                "smaller ones"
            ) from None

    @torch.no_grad()
    def _take(self, weights: Sequence[Tensor]) -> None:
        for parameter, now in zip(self.policy.trained(), weights, strict=True):
            parameter.copy_(now)


class GroupOptimizers(Optimizers):
    """The schedule of a stage whose optimizers are in the ranks; see `Optimizers`.

    Args:
        processes: The ranks.
        staging: Same as for `GroupPasses`.
    """

    def __init__(
        self, policy: Policy, settings: OptimizerSettings, processes: LearnerProcesses, staging: Path | None
    ) -> None:
        super().__init__(policy, settings)
        self._policy, self._processes, self._staging = policy, processes, staging

    def state_dict(self) -> dict[str, Any]:
        """Everything that decides what comes next; what ranks remember is in files, to be taken from there."""
        if self._staging is not None:
            self._staging.mkdir(parents=True, exist_ok=True)
        folder = tempfile.mkdtemp(prefix=".shards-", dir=self._staging)
        groups = self._processes.ask("save", folder=folder)[0]
        return {"done": self.done, "share": self.share, "optimizers": groups, SHARDS: folder}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken, by however many processes."""
        self.done, self.share = state["done"], state.get("share", 0.0)
        theirs = {name: state[name] for name in ("optimizers", SHARDS) if name in state}
        self._processes.ask("load", state=theirs)

    def refresh(self) -> None:
        """Weights were put there by somebody else: ranks take them."""
        self._processes.ask("put_weights", weights=[p.detach().cpu() for p in self._policy.trained()])


def with_shows(
    row: Sequence[Dealt], *, segments: Sequence[Segment], places: Sequence[int]
) -> list[tuple[tuple[int, ...], bool]]:
    """Of each rank in a round, (its segments, whether they count); who has none has another's shortest, for show.

    Args:
        row: By rank, which of `places`.
    """
    mine = [tuple(places[i] for i in slot.indices) for slot in row]
    shortest = min((i for slot in mine for i in slot), key=lambda i: (len(segments[i]), i))
    return [(slot, True) if slot else ((shortest,), False) for slot in mine]


def share_of(passes: Sequence[Pass]) -> Share:
    """A rank's passes, by the segments it is sent."""
    places = tuple(sorted({i for each in passes for i in each.places}))
    at = {place: k for k, place in enumerate(places)}
    return Share(places, tuple(replace(each, places=tuple(at[i] for i in each.places)) for each in passes))
