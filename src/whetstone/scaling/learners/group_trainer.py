"""What is a trainer whose passes are computed by several ranks? What is asked of them, and what they say added up.

Easy to get wrong: whoever samples, saves or moves the weights does so with the whole copy in this process. It is
brought up to date behind every step, and ranks are told where something else changed it.
"""

from __future__ import annotations

import copy
import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from whetstone.errors import LearnerError
from whetstone.learning.model_trainer import SMALLEST_BUDGET, Companion, LossOf, ModelTrainer
from whetstone.learning.noise import EmbeddingNoise
from whetstone.learning.optimizer import SHARDS, Optimizers
from whetstone.learning.packing import MicroBatch, Piece, pack
from whetstone.learning.tally import Tally
from whetstone.learning.token_outputs import TokenOutputs
from whetstone.policies import CPU, Policy, on_cpu
from whetstone.recipe import OptimizerSettings
from whetstone.scaling.learners.dealing import Dealt, balance, rounds_of
from whetstone.scaling.learners.messages import on_device
from whetstone.scaling.learners.processes import LearnerProcesses, OutOfMemory, threads_of
from whetstone.scaling.learners.shard_trainer import Divisible, Frozen, Pass
from whetstone.trajectory import Segment

_WHOLE = 2**62


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


class GroupTrainer(ModelTrainer):
    """The policy in training, computed by others; as `ModelTrainer` to whoever trains.

    Args:
        processes: Who computes.
        together: How many of them compute each pass together; it divides how many there are.
        policy: A whole copy that follows what is trained.
        frozen: By `reference` and `teacher`; of the reference a copy is kept here.
        staging: Where ranks write the optimiser's state, from where a checkpoint takes it.
    """

    def __init__(
        self,
        processes: LearnerProcesses,
        policy: Policy,
        settings: OptimizerSettings,
        *,
        together: int = 1,
        frozen: Mapping[str, Frozen],
        own_teacher: bool,
        process: Companion | None,
        staging: Path | None,
    ) -> None:
        super().__init__(policy, settings.model_copy(update={"optimizer_offload": False}), process=process)
        self.processes, self._frozen, self._together = processes, frozen, together
        self._groups = processes.count // together
        self.own_teacher = own_teacher
        self.reference = frozen["reference"].model if "reference" in frozen else None
        self._begin: dict[str, Any] = {"settings": settings, "own_teacher": own_teacher, "together": together}
        self.optimizers = GroupOptimizers(self, staging)
        self._peak = 0.0
        self._told: dict[str, float] = {}
        self._balance = 1.0
        self._start([None] * processes.count)

    def close(self) -> None:
        """End the processes."""
        self.processes.close()

    def step(self, segments: Sequence[Segment], loss_of: LossOf, **options: Any) -> dict[str, float]:
        """See `ModelTrainer.step`; beside it, how the work was shared and what that cost."""
        self._told = {}
        return super().step(segments, loss_of, **options) | self._told

    def logprobs(
        self,
        segments: Sequence[Segment],
        *,
        temperature: float = 1.0,
        of: Literal["policy", "reference", "teacher"] = "policy",
    ) -> list[Tensor]:
        """See `ModelTrainer.logprobs`."""
        if of == "teacher" and "teacher" not in self._frozen and not self.own_teacher:
            raise ValueError("there is no teacher")
        return self._column(segments, "logprobs", temperature, of)

    def values(self, segments: Sequence[Segment], *, temperature: float = 1.0) -> list[Tensor]:
        """See `ModelTrainer.values`."""
        return self._column(segments, "values", temperature, "policy")

    def show(
        self,
        segments: Sequence[Segment],
        to: Callable[[TokenOutputs, MicroBatch], None],
        *,
        temperature: float = 1.0,
    ) -> None:
        """See `ModelTrainer.show`."""
        logprobs = self._column(segments, "logprobs", temperature, "policy")
        entropies = self._column(segments, "entropies", temperature, "policy")
        read = [i for i, segment in enumerate(segments) if any(segment.action_mask[1:])]
        for i in read:
            (micro,) = pack([segments[i]], token_budget=_WHOLE, device=self._device)
            to(TokenOutputs(logprobs[i], entropies[i]), replace(micro, indices=(i,)))

    def move_reference(self, alpha: float) -> None:
        """See `ModelTrainer.move_reference`."""
        super().move_reference(alpha)
        self._put_reference()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `ModelTrainer.load_state_dict`."""
        super().load_state_dict(state)
        if self.moved_reference:
            self._put_reference()

    def _put_reference(self) -> None:
        assert self.reference is not None
        self.processes.ask("put_reference", weights=[p.detach().cpu() for p in self.reference.parameters()])

    def _start(self, kept: Sequence[Any]) -> None:
        """Have all ranks take their share of what there is."""
        meet = self.processes.ask("rendezvous")[0]
        critic = copy.deepcopy(self.policy.critic).cpu() if self.policy.critic is not None else None
        policy = Policy(on_cpu(self.policy.model), None, critic, self.policy.dtype)
        threads = None if self.processes.joined else threads_of(self.processes.count)
        given: dict[str, Any] = {"policy": policy, "device": self._device.type, "threads": threads}
        frozen = {name: replace(each, model=on_cpu(each.model)) for name, each in self._frozen.items()}
        given["frozen"] = frozen
        self._once("begin", [{"own_state": state} for state in kept], meet=meet, **given, **self._begin)

    def _gradient(
        self,
        segments: Sequence[Segment],
        loss_of: LossOf,
        temperature: float,
        divisor: int,
        flat: Collection[int],
        noise: EmbeddingNoise | None,
    ) -> Tally:
        shares = self._shares(segments, flat, sloped=True)
        divisible = loss_of if isinstance(loss_of, Divisible) else None
        each = [
            {
                "segments": share.segments(segments),
                "passes": share.passes,
                "loss_of": on_device(divisible.part(share.places), CPU) if divisible is not None else loss_of,
            }
            for share in shares
        ]
        began = time.perf_counter()
        answers = self._asked(
            "gradient",
            self._to_ranks(each),
            token_budget=self.token_budget,
            temperature=temperature,
            divisor=divisor,
            noise=noise,
            critic_buffers=self._critic_buffers(),
        )
        slowest = max(seconds for _, _, seconds in answers)
        self._told = {
            "scale/learner_balance": self._balance,
            "scale/learner_seconds": slowest,
            "scale/learner_transfer_seconds": time.perf_counter() - began - slowest,
        }
        tally = Tally()
        for share, (of_group, found, _) in zip(shares, self._once_a_group(answers), strict=True):
            tally.merge(of_group)
            if divisible is not None:
                divisible.take(share.places, found)
        return tally

    def _column(
        self,
        segments: Sequence[Segment],
        column: str,
        temperature: float,
        whose: Literal["policy", "reference", "teacher"],
    ) -> list[Tensor]:
        def whole() -> list[Tensor]:
            shares = self._shares(segments, ())
            each = [{"segments": share.segments(segments), "passes": share.passes} for share in shares]
            answers = self._asked(
                "read",
                self._to_ranks(each),
                whose=whose,
                temperature=temperature,
                column=column,
                critic_buffers=self._critic_buffers(),
            )
            found = [torch.empty(0, device=self._device)] * len(segments)
            for share, of_group in zip(shares, self._once_a_group(answers), strict=True):
                for place, part in zip(share.places, of_group, strict=True):
                    if len(part):
                        found[place] = part.to(self._device)
            return found

        return self._within_memory(whole)

    def _shares(self, segments: Sequence[Segment], flat: Collection[int], *, sloped: bool = False) -> list[Share]:
        """What each group computes; all have as many passes."""
        self._check_ids(segments)
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
        self._balance = balance(everything)
        return [share_of(of_group) for of_group in passes]

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

    def _norm(self) -> float:
        norm: float = self.processes.ask("norm")[0]
        return norm

    def _forget_gradient(self) -> None:
        if not self.processes.closed:
            self.processes.ask("forget")

    def _apply_gradient(self) -> dict[str, float]:
        optimizers = self.optimizers
        began = time.perf_counter()
        answers = self._once("apply", critic_only=optimizers.critic_only, done=optimizers.done, share=optimizers.share)
        found, weights = answers[0].metrics, answers[0].weights
        if weights is not None:
            self._take(weights)
        self._peak = max(answer.peak_gib for answer in answers)
        slowest = max(answer.seconds for answer in answers)
        self._add("scale/learner_seconds", slowest)
        self._add("scale/learner_transfer_seconds", time.perf_counter() - began - slowest)
        self._note_finite(not found["update/nonfinite_fraction"])
        return dict(found)

    def _add(self, name: str, seconds: float) -> None:
        self._told[name] = self._told.get(name, 0.0) + seconds

    def _peak_memory(self) -> float:
        return self._peak

    def _utilization(self, flops: int, seconds: float) -> float:
        devices = self.processes.count if self._device.type != "cpu" else 1  # ranks on CPUs share this machine's
        return super()._utilization(flops, seconds) / devices

    @torch.no_grad()
    def _take(self, weights: Sequence[Tensor]) -> None:
        for parameter, now in zip(self.policy.trained(), weights, strict=True):
            parameter.copy_(now)


class GroupOptimizers(Optimizers):
    """The schedule of a stage, whose optimisers lie with ranks; see `Optimizers`.

    Args:
        staging: As of `GroupTrainer`.
    """

    def __init__(self, trainer: GroupTrainer, staging: Path | None) -> None:
        super().__init__(trainer.policy, trainer.settings)
        self._trainer, self._staging = trainer, staging

    def state_dict(self) -> dict[str, Any]:
        """Everything that decides what comes next; what ranks remember is in files, to be taken from there."""
        if self._staging is not None:
            self._staging.mkdir(parents=True, exist_ok=True)
        folder = tempfile.mkdtemp(prefix=".shards-", dir=self._staging)
        groups = self._trainer.processes.ask("save", folder=folder)[0]
        return {"done": self.done, "share": self.share, "optimizers": groups, SHARDS: folder}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken, by however many processes."""
        self.done, self.share = state["done"], state.get("share", 0.0)
        theirs = {name: state[name] for name in ("optimizers", SHARDS) if name in state}
        self._trainer.processes.ask("load", state=theirs)

    def refresh(self) -> None:
        """Weights were put there by somebody else: ranks take them."""
        self._trainer.processes.ask("put_weights", weights=[p.detach().cpu() for p in self._trainer.policy.trained()])


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
