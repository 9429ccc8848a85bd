"""What stored trajectories a group is given before it is learned from."""

from whetstone.rollout.injections.self_imitation import SelfImitation
from whetstone.rollout.injections.success_replay import SuccessReplay

INJECTIONS = {"self_imitation": SelfImitation, "success_replay": SuccessReplay}

__all__ = ["INJECTIONS", "SelfImitation", "SuccessReplay"]
