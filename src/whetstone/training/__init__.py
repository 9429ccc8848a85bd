"""From trajectories to better weights: the learner, the stages, checkpoints, and a whole run."""

from whetstone.training.assembly import Assembly, assemble, judged_parts
from whetstone.training.evaluating import EvaluationRecord, evaluate, protocol_of
from whetstone.training.interruption import Interrupted
from whetstone.training.learner import Learner
from whetstone.training.needs import PROVIDERS
from whetstone.training.preflight import preflight
from whetstone.training.replay import Replay, Replayed
from whetstone.training.run import final_agent, final_policy, headline, train
from whetstone.training.run_directory import run_recipe
from whetstone.training.why import Explained, Explainer

__all__ = [
    "PROVIDERS",
    "Assembly",
    "EvaluationRecord",
    "Explained",
    "Explainer",
    "Interrupted",
    "Learner",
    "Replay",
    "Replayed",
    "assemble",
    "evaluate",
    "final_agent",
    "final_policy",
    "headline",
    "judged_parts",
    "preflight",
    "protocol_of",
    "run_recipe",
    "train",
]
