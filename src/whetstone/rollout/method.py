"""What makes one method of this field another? Which parts it names for the thirteen primitives; nothing else.

    sample, fork       strategy                  partner      who answers in the environment's place
    allocate           how much a group may use  start        where its episodes begin
    view               what the policy reads     stop         when an episode is to end
    rewrite            what becomes of history   inject       what stored trajectories a group, or an update, is given
    select             what is learned from      refill       which groups count
    task distribution  curriculum                task generation   a source of tasks

A recipe that names none is the plainest: independent episodes of the source's tasks, in their order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from whetstone.compute_thread import run_in_compute_thread
from whetstone.contracts import fulfils
from whetstone.renames import stored_name
from whetstone.rollout.group_sources import MixedSource
from whetstone.rollout.optional import AtEvaluation, EvaluatedAs, KeepsDrawn, Measures, TrainsModel
from whetstone.rollout.protocol import (
    Allocation,
    ContextTransform,
    DynamicSampling,
    EnvironmentWrapper,
    Replay,
    Rewrite,
    Start,
    Stateful,
    StepOutcome,
    Stop,
    TrajectoryFilter,
)
from whetstone.rollout.reading import Overflow
from whetstone.tasks import Curriculum

ROLLOUT_KEYS: Mapping[str, str] = {
    "allocate": "budget_allocation",
    "start": "start_states",
    "stops": "early_stopping",
    "rewrites": "context_rewrites",
}
"""Name of a kind of component in `Method`, checkpoints and metrics → its recipe key below `rollout`, if they differ."""


@dataclass(frozen=True, slots=True)
class Method:
    """The components around a strategy. A field has the name of the recipe key, or the one in `ROLLOUT_KEYS`."""

    curriculum: Curriculum | None = None
    allocate: Allocation | None = None
    start: Start | None = None
    context_transforms: Mapping[str, ContextTransform] | None = None
    stops: Mapping[str, Stop] | None = None
    rewrites: Mapping[str, Rewrite] | None = None
    environment_wrapper: EnvironmentWrapper | None = None
    replay: Mapping[str, Replay] | None = None
    trajectory_filters: Mapping[str, TrajectoryFilter] | None = None
    dynamic_sampling: DynamicSampling | None = None
    sources: Mapping[str, MixedSource] = field(default_factory=dict)
    """Sources of groups by name; `stored` is `reinforcement.offline_mixture`."""
    reward: Any = None
    """Where it learns on from how steps went; judging is the collector's."""
    overflow: Overflow = "drop"
    steps_before: int = 0
    """Steps that what its parts remember saw before the first of this run."""

    def parts(self) -> Iterator[tuple[str, Any]]:
        """(name, part) of each, in the order of a step."""
        for key in ("curriculum", "allocate", "start", "environment_wrapper", "dynamic_sampling", "reward"):
            part = getattr(self, key)
            if part is not None:
                yield key, part
        for name, mixed in self.sources.items():
            yield "stored" if name == "stored" else f"sources.{name}", mixed.source
        for key in ("context_transforms", "stops", "rewrites", "replay", "trajectory_filters"):
            for name, part in (getattr(self, key) or {}).items():
                yield f"{key}.{name}", part

    def at_evaluation(self) -> Method:
        """What of it is there when the policy is evaluated: what belongs to the agent, not to its training."""
        kept = {
            key: {name: part for name, part in (getattr(self, key) or {}).items() if _evaluated(part)}
            for key in ("context_transforms", "stops", "rewrites")
        }
        wrapper = self.environment_wrapper if _evaluated(self.environment_wrapper) else None
        return replace(
            Method(overflow=self.overflow, environment_wrapper=wrapper),
            context_transforms={
                name: part.evaluated if fulfils(part, EvaluatedAs) else part
                for name, part in kept["context_transforms"].items()
            },
            stops=kept["stops"],
            rewrites=kept["rewrites"],
        )

    async def observe_step(self, outcome: StepOutcome) -> None:
        """Same as `observe`, with the parts that train a model in the compute thread."""
        self.observe(outcome, trains_model=False)
        if any(_trains_model(part) for _, part in self.parts()):
            await run_in_compute_thread(self.observe, outcome, trains_model=True)

    def observe(self, heard: StepOutcome, *, trains_model: bool | None = None) -> None:
        """Tell every part that remembers how a step went.

        Args:
            trains_model: Tell only the parts that train a model, or only the others; None: all.
        """
        heard = replace(heard, step=self.steps_before + heard.step)
        for _, part in self.parts():
            if isinstance(part, Stateful) and trains_model in (None, _trains_model(part)):
                part.observe(heard)

    def state(self) -> dict[str, Any]:
        """The state of each component, by its stored name."""
        return {stored_name(name): part.state() for name, part in self.parts() if isinstance(part, Stateful)}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Remember what `state` said; a part it does not know begins with nothing."""
        for name, part in self.parts():
            if isinstance(part, Stateful) and stored_name(name) in state:
                part.load_state(state[stored_name(name)])

    def hand_on(self, state: Mapping[str, Any]) -> None:
        """Begin with what parts of an earlier run remembered."""
        self.load_state(state)
        for name, part in self.parts():
            if stored_name(name) in state and fulfils(part, KeepsDrawn):
                part.forget_versions()

    def metrics(self) -> dict[str, float]:
        """What parts have to say of themselves, each under its name."""
        said: dict[str, float] = {}
        for name, part in self.parts():
            if fulfils(part, Measures):
                said |= {f"{name.replace('.', '/', 1)}/{key}": value for key, value in part.metrics().items()}
        return said


def _trains_model(part: Any) -> bool:
    return fulfils(part, TrainsModel) and part.trains_model


def _evaluated(part: Any) -> bool:
    return fulfils(part, AtEvaluation) and part.at_evaluation
