"""Credit: from rewards to advantages. One file an idea; pieces are in `sets.py` and `returns.py`."""

from whetstone.algorithms.advantages.archer import archer
from whetstone.algorithms.advantages.arpo import arpo
from whetstone.algorithms.advantages.b_coder import b_coder
from whetstone.algorithms.advantages.batch_scaled import batch_scaled
from whetstone.algorithms.advantages.difficulty_weighted import dgrpo, difficulty_weighted
from whetstone.algorithms.advantages.flow_grpo import flow_grpo
from whetstone.algorithms.advantages.gae import gae, token_gae, turn_gae
from whetstone.algorithms.advantages.gigpo import gigpo, similar_states
from whetstone.algorithms.advantages.gpg import gpg
from whetstone.algorithms.advantages.group_relative import group_relative
from whetstone.algorithms.advantages.hrpo import hrpo
from whetstone.algorithms.advantages.igpo import igpo
from whetstone.algorithms.advantages.leave_one_out import leave_one_out
from whetstone.algorithms.advantages.matchtir import matchtir
from whetstone.algorithms.advantages.mira import mira, potential_shaping
from whetstone.algorithms.advantages.one_step import digirl, one_step_td, webrl
from whetstone.algorithms.advantages.opo import opo
from whetstone.algorithms.advantages.oprl import implicit_rewards, oprl
from whetstone.algorithms.advantages.pass_at_k import pass_at_k
from whetstone.algorithms.advantages.portool import portool
from whetstone.algorithms.advantages.reinforce_plus_plus import reinforce_plus_plus, reinforce_plus_plus_baseline
from whetstone.algorithms.advantages.remax import remax
from whetstone.algorithms.advantages.rlvmr import rlvmr
from whetstone.algorithms.advantages.role_wise import dr_mas, mars, role_normalized
from whetstone.algorithms.advantages.single_stream import (
    SuccessCounts,
    kept_share,
    remembered,
    sampling_weight,
    updated,
)
from whetstone.algorithms.advantages.spa import spa
from whetstone.algorithms.advantages.toolpo import toolpo
from whetstone.algorithms.advantages.tree_ps import node_values, tree_ps
from whetstone.algorithms.advantages.ui_s1 import ui_s1
from whetstone.algorithms.advantages.whitened import whitened

_ESTIMATORS = (
    archer, arpo, b_coder, batch_scaled, dgrpo, difficulty_weighted, digirl, dr_mas, flow_grpo, gigpo, gpg,
    group_relative, hrpo, igpo, leave_one_out, mars, matchtir, mira, one_step_td, opo, oprl, pass_at_k, portool,
    reinforce_plus_plus, reinforce_plus_plus_baseline, remax, rlvmr, role_normalized, spa, token_gae, toolpo, tree_ps,
    turn_gae, ui_s1, webrl,
)  # fmt: skip
ADVANTAGES = {estimator.__name__: estimator for estimator in _ESTIMATORS}

__all__ = [
    "ADVANTAGES", "SuccessCounts", "archer", "arpo", "b_coder", "batch_scaled", "dgrpo", "difficulty_weighted",
    "digirl", "dr_mas", "flow_grpo", "gae", "gigpo", "gpg", "group_relative", "hrpo", "igpo", "implicit_rewards",
    "kept_share", "leave_one_out", "mars", "matchtir", "mira", "node_values", "one_step_td", "opo", "oprl",
    "pass_at_k", "portool", "potential_shaping", "reinforce_plus_plus", "reinforce_plus_plus_baseline", "remax",
    "remembered", "rlvmr", "role_normalized", "sampling_weight", "similar_states", "spa", "token_gae", "toolpo",
    "tree_ps", "turn_gae", "ui_s1", "updated", "webrl", "whitened",
]  # fmt: skip
