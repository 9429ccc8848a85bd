"""Language models as policies: loaded from a folder, or built from nothing."""

from whetstone.policies.policy import Policy, load_policy, save_policy
from whetstone.policies.tiny import build_tiny

__all__ = ["Policy", "build_tiny", "load_policy", "save_policy"]
