"""Rollouts: single episodes, concurrent collection, and actors."""

from typing import TYPE_CHECKING

from whetstone.lazy_imports import export_lazily

if TYPE_CHECKING:
    from whetstone.rollout.actors import (
        EndpointActor as EndpointActor,
        ExpertActor as ExpertActor,
        FrozenActor as FrozenActor,
        ModelActor as ModelActor,
        PolicyActor as PolicyActor,
    )
    from whetstone.rollout.staleness_control import Admission as Admission
    from whetstone.rollout.batch_scheduling import next_batch as next_batch
    from whetstone.rollout.collector import (
        Collector as Collector,
        GroupOutcome as GroupOutcome,
        make_plans as make_plans,
    )
    from whetstone.rollout.conversation import ChatSession as ChatSession
    from whetstone.rollout.episode_inputs import EpisodeLimits as EpisodeLimits
    from whetstone.rollout.method import MethodComponents as MethodComponents
    from whetstone.rollout.protocol import (
        Action as Action,
        Actor as Actor,
        ActorInput as ActorInput,
        EpisodeKey as EpisodeKey,
        EpisodeRecord as EpisodeRecord,
        EpisodeState as EpisodeState,
        GroupPlan as GroupPlan,
        Roller as Roller,
        StepOutcome as StepOutcome,
        Strategy as Strategy,
    )
    from whetstone.rollout.runner import run_episode as run_episode
    from whetstone.rollout.status import RolloutStatus as RolloutStatus
    from whetstone.rollout.strategies import (
        NOT_CHOSEN as NOT_CHOSEN,
        SEARCHES as SEARCHES,
        STRATEGIES as STRATEGIES,
        Independent as Independent,
    )

__getattr__, __dir__ = export_lazily(__name__)
