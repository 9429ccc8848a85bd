"""What do people call it elsewhere? The names of papers and of other libraries for what is called otherwise here.

Easy to get wrong: a name that stands for a whole algorithm names one of its parts here. PPO's objective and GRPO's are
the same clipped surrogate; what tells them apart is the advantage.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

ALIASES: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "advantage": {
        "grpo": {"name": "group_relative"},
        "dr_grpo": {"name": "group_relative", "scale": False},
        "grpo_passk": {"name": "pass_at_k"},
        "rloo": {"name": "leave_one_out"},
        "ppo": {"name": "token_gae"},
        "gae": {"name": "token_gae"},
        "reinforce++": {"name": "reinforce_plus_plus"},
        "reinforce++_baseline": {"name": "reinforce_plus_plus_baseline"},
        "lite_ppo": {"name": "batch_scaled"},
        "istar": {"name": "oprl"},
        "treerl": {"name": "tree_ps"},
    },
    "objective": {
        "ppo": {"name": "clipped"},
        "grpo": {"name": "clipped"},
        "vanilla": {"name": "clipped"},
        "reinforce": {"name": "policy_gradient"},
        "pg": {"name": "policy_gradient"},
        "sft": {"name": "supervised"},
        "nll": {"name": "supervised"},
        "geo_mean": {"name": "gmpo"},
        "opd": {"name": "on_policy_distillation"},
    },
    "importance_correction": {
        "tis": {"name": "truncated"},
        "mis": {"name": "masked"},
        "icepop": {"name": "masked", "low": 0.5},
        "seq_tis": {"name": "sequence_truncated"},
        "seq_mis": {"name": "sequence_masked"},
    },
}
"""By key of a recipe and name: the part, with options where the name means them."""


def alias_of(key: str, keys: Mapping[str, Any]) -> str:
    """Return the name in a key of a recipe if it is an alias, in the spelling of `ALIASES`; otherwise an empty text."""
    written = keys.get(key)
    name = written.get("name") if isinstance(written, Mapping) else written
    name = name.lower().replace("-", "_") if isinstance(name, str) else ""
    return name if name in ALIASES[key] else ""


def canonical(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Keys of a recipe with such names replaced by ours; options that are written go before those a name means."""
    found = dict(keys)
    for key, names in ALIASES.items():
        written = keys.get(key)
        options = dict(written) if isinstance(written, Mapping) else {"name": written}
        name = options.get("name")
        meant = names.get(name.lower().replace("-", "_")) if isinstance(name, str) else None
        if meant is not None:
            found[key] = {**meant, **{option: value for option, value in options.items() if option != "name"}}
    return found
