"""Episodes: one, many at once, and who acts in them."""

from typing import TYPE_CHECKING

from whetstone.window import window

if TYPE_CHECKING:
    from whetstone.rollout.actors import EndpointActor, ExpertActor, FrozenActor, ModelActor, PolicyActor
    from whetstone.rollout.admission import Admission
    from whetstone.rollout.batch_scheduling import next_batch
    from whetstone.rollout.collector import Collector, GroupOutcome, plans_of
    from whetstone.rollout.conversation import Conversation
    from whetstone.rollout.episode_inputs import Limits
    from whetstone.rollout.method import Method
    from whetstone.rollout.protocol import (
        Action,
        Actor,
        ActorInput,
        EpisodeKey,
        EpisodeRecord,
        EpisodeState,
        Plan,
        Roller,
        StepOutcome,
        Strategy,
    )
    from whetstone.rollout.runner import run_episode
    from whetstone.rollout.status import RolloutStatus
    from whetstone.rollout.strategies import NOT_CHOSEN, SEARCHES, STRATEGIES, Independent

__getattr__, __dir__ = window(__name__)

__all__ = [
    "NOT_CHOSEN",
    "SEARCHES",
    "STRATEGIES",
    "Action",
    "Actor",
    "ActorInput",
    "Admission",
    "Collector",
    "Conversation",
    "EndpointActor",
    "EpisodeKey",
    "EpisodeRecord",
    "EpisodeState",
    "ExpertActor",
    "FrozenActor",
    "GroupOutcome",
    "Independent",
    "Limits",
    "Method",
    "ModelActor",
    "Plan",
    "PolicyActor",
    "Roller",
    "RolloutStatus",
    "StepOutcome",
    "Strategy",
    "next_batch",
    "plans_of",
    "run_episode",
]
