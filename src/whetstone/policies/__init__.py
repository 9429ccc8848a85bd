"""Language models as policies: loaded from a folder, or built from nothing."""

from typing import TYPE_CHECKING

from whetstone.window import window

if TYPE_CHECKING:
    from whetstone.policies.adapters import adapters_off, add_adapters, has_adapters, load_adapters, without_adapters
    from whetstone.policies.critic import Critic, critic_for, critic_from
    from whetstone.policies.policy import Policy, freeze, load_policy, save_policy
    from whetstone.policies.tiny import build_tiny
    from whetstone.policies.view import copy_of_trained, view_of

__getattr__, __dir__ = window(__name__)

__all__ = [
    "Critic",
    "Policy",
    "adapters_off",
    "add_adapters",
    "build_tiny",
    "copy_of_trained",
    "critic_for",
    "critic_from",
    "freeze",
    "has_adapters",
    "load_adapters",
    "load_policy",
    "save_policy",
    "view_of",
    "without_adapters",
]
