"""Start states: turns that precede all episodes of a group, from an expert or from stored successes."""

from whetstone.rollout.start_states.expert_prefix import ExpertPrefix as ExpertPrefix
from whetstone.rollout.start_states.replay_prefix import ReplayPrefix as ReplayPrefix

STARTS = {"expert_prefix": ExpertPrefix, "replay_prefix": ReplayPrefix}
