"""Advantage estimators, one file each; `group_statistics.py` and `returns.py` have their shared parts."""

from whetstone.algorithms.advantages.archer import archer as archer
from whetstone.algorithms.advantages.arpo import arpo as arpo
from whetstone.algorithms.advantages.b_coder import b_coder as b_coder
from whetstone.algorithms.advantages.batch_scaled import batch_scaled as batch_scaled
from whetstone.algorithms.advantages.difficulty_weighted import (
    dgrpo as dgrpo,
    difficulty_weighted as difficulty_weighted,
)
from whetstone.algorithms.advantages.flow_grpo import flow_grpo as flow_grpo
from whetstone.algorithms.advantages.gae import gae as gae, token_gae as token_gae, turn_gae as turn_gae
from whetstone.algorithms.advantages.gigpo import gigpo as gigpo, similar_states as similar_states
from whetstone.algorithms.advantages.gpg import gpg as gpg
from whetstone.algorithms.advantages.group_relative import group_relative as group_relative
from whetstone.algorithms.advantages.hrpo import hrpo as hrpo
from whetstone.algorithms.advantages.igpo import igpo as igpo
from whetstone.algorithms.advantages.leave_one_out import leave_one_out as leave_one_out
from whetstone.algorithms.advantages.matchtir import matchtir as matchtir
from whetstone.algorithms.advantages.mira import mira as mira, potential_shaping as potential_shaping
from whetstone.algorithms.advantages.one_step_td import digirl as digirl, one_step_td as one_step_td, webrl as webrl
from whetstone.algorithms.advantages.opo import opo as opo
from whetstone.algorithms.advantages.oprl import implicit_rewards as implicit_rewards, oprl as oprl
from whetstone.algorithms.advantages.pass_at_k import pass_at_k as pass_at_k
from whetstone.algorithms.advantages.portool import portool as portool
from whetstone.algorithms.advantages.reinforce_plus_plus import (
    reinforce_plus_plus as reinforce_plus_plus,
    reinforce_plus_plus_baseline as reinforce_plus_plus_baseline,
)
from whetstone.algorithms.advantages.remax import remax as remax
from whetstone.algorithms.advantages.rlvmr import rlvmr as rlvmr
from whetstone.algorithms.advantages.role_wise import dr_mas as dr_mas, mars as mars, role_normalized as role_normalized
from whetstone.algorithms.advantages.single_stream import (
    SuccessCounts as SuccessCounts,
    keep_fraction as keep_fraction,
    initial_counts as initial_counts,
    sampling_weight as sampling_weight,
    update_counts as update_counts,
)
from whetstone.algorithms.advantages.spa import spa as spa
from whetstone.algorithms.advantages.toolpo import toolpo as toolpo
from whetstone.algorithms.advantages.tree_ps import node_values as node_values, tree_ps as tree_ps
from whetstone.algorithms.advantages.ui_s1 import ui_s1 as ui_s1
from whetstone.algorithms.advantages.whitened import whitened as whitened

_ESTIMATORS = (
    archer, arpo, b_coder, batch_scaled, dgrpo, difficulty_weighted, digirl, dr_mas, flow_grpo, gigpo, gpg,
    group_relative, hrpo, igpo, leave_one_out, mars, matchtir, mira, one_step_td, opo, oprl, pass_at_k, portool,
    reinforce_plus_plus, reinforce_plus_plus_baseline, remax, rlvmr, role_normalized, spa, token_gae, toolpo, tree_ps,
    turn_gae, ui_s1, webrl,
)  # fmt: skip
ADVANTAGES = {estimator.__name__: estimator for estimator in _ESTIMATORS}
