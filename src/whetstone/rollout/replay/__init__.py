"""What stored trajectories a group is given before it is learned from."""

from whetstone.rollout.replay.self_imitation import SelfImitation
from whetstone.rollout.replay.success_replay import SuccessReplay

REPLAY = {"self_imitation": SelfImitation, "success_replay": SuccessReplay}

__all__ = ["REPLAY", "SelfImitation", "SuccessReplay"]
