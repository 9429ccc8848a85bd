"""Performance plan of a recipe on a number of GPUs: best split of learner and samplers, bottleneck, improvements.

    recipe, model, GPUs → memory (`plan_memory.py`) → rates (`plan_rates.py`) → every split of learner and samplers
    → the simulator → the best split, its bottleneck, and the effect of a change of one key

Learner and samplers are planned on separate GPUs, and colocated on all GPUs in turns. A large cluster is simulated as a
fraction of it: replicas, groups and slots are divided by one number, and the learner's time is kept. Replicas interact
only through admission.

Note:
    The fastest plan per step is not the fastest per episode. More tasks per step make steps longer and clusters fuller;
    both numbers are reported.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from whetstone.assembly.memory_estimate import estimate_policy_size
from whetstone.assembly.model_size import ModelSize
from whetstone.errors import RecipeError
from whetstone.recipe import ReinforcementSettings, Resolved
from whetstone.scaling.plan_hardware import Gpu, named_model
from whetstone.scaling.plan_memory import (
    LearnerMemory,
    ReplicaMemory,
    fitting_learner,
    learner_fits,
    learner_memory,
    replica_memory,
    smallest_replica,
    trained_parameters,
)
from whetstone.scaling.plan_rates import Rates, engine_rates, episode_shape, learner_rates, mean_context
from whetstone.scaling.simulation import simulate_run
from whetstone.scaling.simulation_scenario import Failures, Scenario, SimulationSummary

_MOST_SIMULATED = 384
"""Maximum number of simulated episodes per update; of a larger number, a fraction is simulated."""
_UPDATES, _SKIPPED = 8, 3
_LONGEST = 2.0
"""Length of the longest contexts, in multiples of the mean."""
_MIN_GAIN = 0.05
"""Minimum relative gain of a change that is reported."""
_SWITCH_SECONDS = 5.0
"""Seconds per update in which colocated GPUs exchange the memory of learner and sampler, both ways together."""


@dataclass(frozen=True, slots=True)
class Balance:
    """Split of GPUs between learner and samplers."""

    learners: int
    """Number of GPUs of the learner."""
    replicas: int
    """Number of engine replicas."""
    tensor_parallel: int
    """Number of GPUs of each replica."""
    colocated: bool
    """Whether the same GPUs train and sample, in turns."""
    together: int = 1
    """Number of GPUs that compute each of the learner's layers together."""

    @property
    def gpus(self) -> int:
        """Total number of GPUs of learner and samplers."""
        return self.learners if self.colocated else self.learners + self.replicas * self.tensor_parallel

    @property
    def keys(self) -> dict[str, Any]:
        """Recipe keys with the values that place this split."""
        return {
            "scale.learner_processes": self.learners,
            "scale.engine_replicas": self.replicas,
            "scale.tensor_parallel": self.tensor_parallel,
            **({"scale.learner_tensor_parallel": self.together} if self.together > 1 else {}),
            **({"scale.colocated": True} if self.colocated else {"scale.replica_gpus": 1}),
        }


@dataclass(frozen=True, slots=True)
class Own:
    """Prediction for the split that the recipe's own `scale` specifies."""

    balance: Balance
    summary: SimulationSummary


@dataclass(frozen=True, slots=True)
class PlannedChange:
    """Predicted throughput with other values of one or two recipe keys."""

    keys: Mapping[str, Any]
    """Recipe keys with their changed values."""
    updates_per_hour: float
    episodes_per_hour: float
    bottleneck: str
    """Component that limits the throughput after the change; see `SimulationSummary.bottleneck`."""


@dataclass(frozen=True, slots=True)
class PlacementPlan:
    """Best placement of a recipe on a number of GPUs, with its predicted throughput. `best_plan` returns it."""

    gpu: str
    """Name of the GPU type."""
    gpus: int
    """Number of GPUs."""
    parameters: int
    """Number of parameters of the model."""
    balance: Balance
    """Fastest split of the GPUs."""
    learner: LearnerMemory
    replica: ReplicaMemory
    seconds_per_update: float
    updates_per_hour: float
    episodes_per_hour: float
    tokens_per_second: float
    summary: SimulationSummary
    """Result of the simulation of the fastest split."""
    simulated_share: float
    """Fraction of the cluster that is simulated, from 0 to 1; 1: all of it."""
    needed: Mapping[str, Any]
    """Recipe keys whose values must differ from the recipe's for the model to fit."""
    others: Sequence[tuple[Balance, float]]
    """All simulated splits with their updates per hour, the fastest first."""
    own: Own | None
    """Prediction for the recipe's own `scale`; None if it places no GPUs."""
    changes: Sequence[PlannedChange]
    """Changes of recipe keys that add most episodes per hour, the best first."""
    assumed: Mapping[str, Any]
    """Rates that the prediction assumes."""


def own_balance(resolved: Resolved) -> Balance | None:
    """Return the split of GPUs that the recipe's `scale` specifies.

    Returns None if the recipe places no GPUs.
    """
    scale = resolved.recipe.scale
    if not scale.on_ray or not (scale.replica_gpus or scale.colocated):
        return None
    return Balance(
        scale.learner_processes,
        scale.engine_replicas,
        scale.tensor_parallel,
        scale.colocated,
        scale.learner_tensor_parallel,
    )


def best_plan(
    resolved: Resolved, *, gpu: Gpu, gpus: int | None = None, model: str | None, rates: Rates, seed: int = 0
) -> PlacementPlan:
    """Find the fastest placement of a recipe's reinforcement learning stage on a number of GPUs.

    Args:
        resolved: Recipe of the run.
        gpu: Type of the GPUs.
        gpus: Number of GPUs; None: as many as the recipe's `scale` places.
        model: Model size such as `8b`; None: the recipe's own policy.
        rates: Measured or assumed rates.
        seed: Seed of the simulation.

    Raises:
        RecipeError: The recipe has no such stage, the model size is unknown, or the model does not fit.
    """
    own = own_balance(resolved)
    if gpus is None:
        if own is None:
            raise RecipeError(
                "--gpus: required, because the recipe's scale places no GPUs; set it or scale.replica_gpus"
            )
        gpus = own.gpus
    if gpus < 1:
        raise RecipeError(f"--gpus: must be at least 1, got {gpus}")
    settings = resolved.recipe.reinforcement
    if settings is None:
        raise RecipeError("reinforcement: a plan requires this stage, and the recipe has none")
    cluster = _Cluster(resolved, settings, _model_size(resolved, model), gpu, gpus, rates, seed)
    own_plan = cluster.predict_own(own) if own is not None else None
    tried = list(cluster.balances())
    if own_plan is not None and all(balance != own_plan.balance for balance, _ in tried):
        tried.append((own_plan.balance, own_plan.summary))
    tried.sort(key=lambda each: -each[1].updates_per_hour)
    best, best_summary = tried[0]
    share = cluster.share
    return PlacementPlan(
        gpu=gpu.name,
        gpus=gpus,
        parameters=cluster.size.parameters,
        balance=best,
        learner=learner_memory(cluster.size, resolved.recipe, cluster.settings, best.learners, best.together),
        replica=cluster.replica_over(best.tensor_parallel),
        seconds_per_update=best_summary.seconds_per_update,
        updates_per_hour=best_summary.updates_per_hour,
        episodes_per_hour=best_summary.episodes_per_hour * share,
        tokens_per_second=best_summary.tokens_per_second * share,
        summary=best_summary,
        simulated_share=1 / share,
        needed=cluster.needed,
        others=[(balance, summary.updates_per_hour) for balance, summary in tried],
        own=own_plan,
        changes=sorted(cluster.changes(best, best_summary), key=lambda change: -change.episodes_per_hour),
        assumed={**rates.model_dump(), "context": round(cluster.context)},
    )


def _model_size(resolved: Resolved, model: str | None) -> ModelSize:
    if model is None:
        size = estimate_policy_size(resolved.recipe)
        if size is None or not size.layers:
            raise RecipeError("policy.path: the size of this model cannot be counted; specify it: --model 8b")
        return size
    size = named_model(model)
    if size is None:
        raise RecipeError(f'--model: "{model}" is not a size; name billions of parameters, such as 8b')
    return size


class _Cluster:
    """Simulated cluster: GPUs of one type with a model and a recipe."""

    def __init__(
        self, resolved: Resolved, settings: ReinforcementSettings, size: ModelSize, gpu: Gpu, gpus: int, rates: Rates,
        seed: int,
    ) -> None:  # fmt: skip
        self.resolved, self.size, self.gpu, self.gpus = resolved, size, gpu, gpus
        self.rates, self.seed = rates, seed
        self.shape = episode_shape(rates.episode, resolved.recipe)
        self.context = mean_context(self.shape)
        self.replica = smallest_replica(size, gpu, gpus, self.context * _LONGEST)
        smallest, self.settings = fitting_learner(size, resolved.recipe, settings, gpu, gpus)
        self.fewest = smallest.gpus
        self.needed = {
            f"reinforcement.{name}": value
            for name, value in self.settings.model_dump().items()
            if value != settings.model_dump()[name]
        }
        episodes = settings.tasks_per_step * resolved.recipe.rollout.group_size
        self.share = max(1.0, episodes / _MOST_SIMULATED)

    def balances(self) -> Iterator[tuple[Balance, SimulationSummary]]:
        """Yield possible splits of the GPUs with their simulated throughput."""
        wide = self.replica.tensor_parallel
        learners = {self.fewest}
        for part in (1 / 8, 1 / 4, 3 / 8, 1 / 2, 5 / 8, 3 / 4):
            learners.add(max(self.fewest, round(self.gpus * part / wide) * wide))
        separate = [Balance(n, (self.gpus - n) // wide, wide, False) for n in sorted(learners) if self.gpus - n >= wide]
        for balance in [*separate, Balance(self.gpus, self.gpus // wide, wide, True)]:
            yield balance, self.simulated(balance, self.settings, self.resolved.recipe.rollout.max_episodes)

    def predict_own(self, own: Balance) -> Own:
        """Predict the throughput of the recipe's own split.

        Raises:
            RecipeError: The split needs more GPUs than there are, or the model does not fit on them.
        """
        size, gpu, parts = self.size, self.gpu, f"{own.learners} for the learner"
        if not own.colocated:
            parts += f" and {own.replicas} replicas × {own.tensor_parallel}"
        if own.gpus > self.gpus:
            raise self.resolved.error("scale", f"places {own.gpus} GPUs ({parts}), and there are {self.gpus} (--gpus)")
        if (replica := self.replica_over(own.tensor_parallel)).sequences < 1:
            detail = f"{replica.weights:.1f} GiB of weights do not fit into {gpu.memory_gib:g} GiB of each {gpu.name}"
            raise self.resolved.error("scale.tensor_parallel", f"{own.tensor_parallel} GPUs per replica: {detail}")
        memory = learner_memory(size, self.resolved.recipe, self.settings, own.learners, own.together)
        if not learner_fits(memory, gpu):
            detail = f"each would hold {memory.total:.1f} of {gpu.memory_gib:g} GiB; use {self.fewest} or more"
            detail += " that each compute whole layers" if own.together > 1 else ""
            raise self.resolved.error("scale.learner_processes", f"{own.learners} GPUs of the learner: {detail}")
        return Own(own, self.simulated(own, self.settings, self.resolved.recipe.rollout.max_episodes))

    def replica_over(self, tensor_parallel: int) -> ReplicaMemory:
        """Return the memory of a replica that is spread over `tensor_parallel` GPUs."""
        if tensor_parallel == self.replica.tensor_parallel:
            return self.replica
        return replica_memory(self.size, self.gpu, tensor_parallel, self.context * _LONGEST)

    def changes(self, balance: Balance, now: SimulationSummary) -> Iterator[PlannedChange]:
        """Yield other values of one or two keys that improve the throughput by at least 5 %."""
        settings, places = self.settings, self.resolved.recipe.rollout.max_episodes
        ahead = settings.admit_ahead
        tried: list[tuple[dict[str, Any], ReinforcementSettings, int]] = [
            ({"rollout.max_in_flight": 4 * places}, settings, 4 * places),
        ]
        tasks = settings.model_copy(update={"tasks_per_step": 4 * settings.tasks_per_step})
        both = {"reinforcement.tasks_per_step": tasks.tasks_per_step, "rollout.max_in_flight": 4 * places}
        tried.append((both, tasks, 4 * places))
        for admit, bound in ((ahead + 1, 2 * ahead + 2), (ahead, 2 * settings.max_staleness if ahead else 0)):
            more = {"admit_ahead": admit, "max_staleness": bound}
            if (admit, bound) != (ahead, settings.max_staleness):
                keys = {f"reinforcement.{name}": value for name, value in more.items()}
                tried.append(
                    ({**keys, "rollout.max_in_flight": 4 * places}, settings.model_copy(update=more), 4 * places)
                )
        episodes = now.episodes_per_hour * self.share
        for keys, changed, wide in tried:
            if changed.admit_ahead and balance.colocated:
                continue
            changed_summary = self.simulated(balance, changed, wide)
            each = changed_summary.updates_per_hour * changed.tasks_per_step * self.resolved.recipe.rollout.group_size
            if each > episodes * (1 + _MIN_GAIN):
                yield PlannedChange(keys, changed_summary.updates_per_hour, each, changed_summary.bottleneck)

    def simulated(self, balance: Balance, settings: ReinforcementSettings, places: int) -> SimulationSummary:
        """Simulate a split of the GPUs with given settings and number of episode slots."""
        share = max(1.0, settings.tasks_per_step * self.resolved.recipe.rollout.group_size / _MOST_SIMULATED)
        return simulate_run(self.scenario(balance, settings, places, share))

    def scenario(self, balance: Balance, settings: ReinforcementSettings, places: int, share: float) -> Scenario:
        """Build the scenario of a split for the simulator.

        Args:
            balance: Split of the GPUs.
            settings: Settings of the reinforcement learning stage.
            places: Number of episode slots.
            share: Number by which replicas, groups and slots are divided to simulate a fraction of the cluster.
        """
        size, gpu, rates, recipe = self.size, self.gpu, self.rates, self.resolved.recipe
        engine = engine_rates(
            rates.engine, size, gpu, tensor_parallel=balance.tensor_parallel,
            sequences=self.replica_over(balance.tensor_parallel).sequences, context=self.context,
        )  # fmt: skip
        travel = size.parameters if recipe.policy.lora is None else trained_parameters(size, recipe)
        learner = learner_rates(
            rates, size, gpu, settings, learners=balance.learners, travel=travel,
            trained=trained_parameters(size, recipe), tensor_parallel=balance.tensor_parallel, context=self.context,
            together=balance.together, has_reference=recipe.has_reference,
        )  # fmt: skip
        groups, replicas = max(1, round(settings.tasks_per_step / share)), max(1, round(balance.replicas / share))
        # a replica that represents a fraction of one is slower by that factor
        slower = balance.replicas / share / replicas
        engine = replace(engine, replicas=replicas, step_seconds=engine.step_seconds / min(1.0, slower),
                         step_seconds_per_sequence=engine.step_seconds_per_sequence / slower)  # fmt: skip
        tokens = learner.seconds_per_token * settings.tasks_per_step / groups
        if balance.colocated:
            learner = replace(learner, transfer_seconds=_SWITCH_SECONDS)
        hourly = rates.failures.gpu_per_hour
        return Scenario(
            engine=engine,
            episode=self.shape,
            learner=replace(learner, seconds_per_token=tokens),
            failures=Failures(
                replica_per_hour=hourly * balance.tensor_parallel,
                learner_per_hour=hourly * balance.learners,
                restart_seconds=rates.failures.restart_seconds,
            ),
            groups_per_update=groups,
            group_size=recipe.rollout.group_size,
            max_in_flight=max(recipe.rollout.group_size, round(places / share)),
            admit_ahead=settings.admit_ahead,
            max_staleness=settings.max_staleness,
            deterministic=settings.deterministic,
            in_flight=settings.in_flight,
            take_turns=balance.colocated,
            updates=_UPDATES,
            skip=_SKIPPED,
            seed=self.seed,
        )
