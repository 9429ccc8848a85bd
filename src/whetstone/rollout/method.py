"""Rollout components of a training method, one for each primitive that the recipe names.

    sample, fork       strategy                  partner      wrapper of the environment
    allocate           budget of a group         start        start state of its episodes
    view               context of the policy     stop         early stopping of an episode
    rewrite            rewritten history         inject       stored trajectories for a group or an update
    select             trained trajectories      refill       accepted groups
    task distribution  curriculum                task generation   a source of tasks

Without components, a recipe samples independent episodes of the source's tasks, in their order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from whetstone.capabilities import implements_protocol
from whetstone.compute_thread import run_in_compute_thread
from whetstone.renames import stored_name
from whetstone.rollout.context_builder import Overflow
from whetstone.rollout.group_sources import MixedSource
from whetstone.rollout.optional_protocols import (
    AtEvaluation,
    EvaluatedAs,
    ReportsMetrics,
    StoresTrajectories,
    TrainsModel,
)
from whetstone.rollout.protocol import (
    ActionMask,
    Allocation,
    ContextTransform,
    DynamicSampling,
    EnvironmentWrapper,
    Rewrite,
    Start,
    Stateful,
    StepOutcome,
    Stop,
    TrajectoryFilter,
    TrajectoryReplay,
)
from whetstone.tasks import Curriculum

ROLLOUT_KEYS: Mapping[str, str] = {
    "allocate": "budget_allocation",
    "start": "start_states",
    "stops": "early_stopping",
    "rewrites": "context_rewrites",
}
"""Name of a component kind in `MethodComponents`, checkpoints and metrics → its key below `rollout`, if they differ."""


@dataclass(frozen=True, slots=True)
class MethodComponents:
    """Rollout components of a recipe besides the strategy. `assembly.rollout_components` builds them.

    A field has the name of the recipe key below `rollout`, or the name in `ROLLOUT_KEYS`. None or an empty mapping: the
    recipe names no such component.
    """

    curriculum: Curriculum | None = None
    allocate: Allocation | None = None
    start: Start | None = None
    context_transforms: Mapping[str, ContextTransform] | None = None
    stops: Mapping[str, Stop] | None = None
    rewrites: Mapping[str, Rewrite] | None = None
    environment_wrapper: EnvironmentWrapper | None = None
    action_mask: ActionMask | None = None
    replay: Mapping[str, TrajectoryReplay] | None = None
    trajectory_filters: Mapping[str, TrajectoryFilter] | None = None
    dynamic_sampling: DynamicSampling | None = None
    sources: Mapping[str, MixedSource] = field(default_factory=dict)
    """Sources of groups that are mixed into updates, by name; `stored` is `reinforcement.offline_mixture`."""
    reward: Any = None
    """Reward of the recipe if it is stateful, so that it observes steps and is saved; None otherwise."""
    overflow: Overflow = "drop"
    stop_control_fraction: float = 0.0
    """Fraction of stopped episodes that continue as controls; see `estimate_early_stopping`."""
    steps_before: int = 0
    """Number of steps that the loaded component states cover before the first step of this run."""

    def named_components(self) -> Iterator[tuple[str, Any]]:
        """Yield (name, component) of all components, in the order in which a step uses them."""
        for key in (
            "curriculum",
            "allocate",
            "start",
            "environment_wrapper",
            "action_mask",
            "dynamic_sampling",
            "reward",
        ):
            part = getattr(self, key)
            if part is not None:
                yield key, part
        for name, mixed in self.sources.items():
            yield "stored" if name == "stored" else f"sources.{name}", mixed.source
        for key in ("context_transforms", "stops", "rewrites", "replay", "trajectory_filters"):
            for name, part in (getattr(self, key) or {}).items():
                yield f"{key}.{name}", part

    def at_evaluation(self) -> MethodComponents:
        """Return the components that evaluations use: those that belong to the agent, not only to its training."""
        components = {
            key: {name: part for name, part in (getattr(self, key) or {}).items() if _evaluated(part)}
            for key in ("context_transforms", "stops", "rewrites")
        }
        wrapper = self.environment_wrapper if _evaluated(self.environment_wrapper) else None
        return replace(
            MethodComponents(overflow=self.overflow, environment_wrapper=wrapper),
            context_transforms={
                name: part.evaluated if implements_protocol(part, EvaluatedAs) else part
                for name, part in components["context_transforms"].items()
            },
            stops=components["stops"],
            rewrites=components["rewrites"],
        )

    async def observe_step(self, outcome: StepOutcome) -> None:
        """Pass the result of a step to every stateful component, as `observe` does.

        Components that train a model run in the compute thread, so that the event loop is not blocked.
        """
        self.observe(outcome, trains_model=False)
        if any(_trains_model(part) for _, part in self.named_components()):
            await run_in_compute_thread(self.observe, outcome, trains_model=True)

    def observe(self, outcome: StepOutcome, *, trains_model: bool | None = None) -> None:
        """Pass the result of a step to every stateful component.

        Args:
            outcome: Result of the step.
            trains_model: True: only components that train a model; False: only the others; None: all.
        """
        outcome = replace(outcome, step=self.steps_before + outcome.step)
        for _, part in self.named_components():
            if isinstance(part, Stateful) and trains_model in (None, _trains_model(part)):
                part.observe(outcome)

    def state(self) -> dict[str, Any]:
        """Return the states of all stateful components by their stored names, for a checkpoint."""
        return {stored_name(name): part.state() for name, part in self.named_components() if isinstance(part, Stateful)}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore component states from a checkpoint.

        A component that `state` does not contain keeps its initial state.
        """
        for name, part in self.named_components():
            if isinstance(part, Stateful) and stored_name(name) in state:
                part.load_state(state[stored_name(name)])

    def hand_on(self, state: Mapping[str, Any]) -> None:
        """Restore component states from an earlier run (`init_state_from`).

        Stored trajectories are marked as older than every version of this run.
        """
        self.load_state(state)
        for name, part in self.named_components():
            if stored_name(name) in state and implements_protocol(part, StoresTrajectories):
                part.forget_versions()

    def metrics(self) -> dict[str, float]:
        """Return the metrics of all components, prefixed with the component's name."""
        metrics: dict[str, float] = {}
        for name, part in self.named_components():
            if implements_protocol(part, ReportsMetrics):
                metrics |= {f"{name.replace('.', '/', 1)}/{key}": value for key, value in part.metrics().items()}
        return metrics


def _trains_model(part: Any) -> bool:
    return implements_protocol(part, TrainsModel) and part.trains_model


def _evaluated(part: Any) -> bool:
    return implements_protocol(part, AtEvaluation) and part.at_evaluation
