"""Experience replay: stored trajectories that are added to groups or trained in a second pass."""

from whetstone.rollout.replay.self_imitation import SelfImitation as SelfImitation
from whetstone.rollout.replay.success_replay import SuccessReplay as SuccessReplay

REPLAY = {"self_imitation": SelfImitation, "success_replay": SuccessReplay}
