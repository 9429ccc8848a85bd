"""Credit: from rewards to advantages."""

from whetstone.algorithms.advantages.group_relative import group_relative

ADVANTAGES = {"group_relative": group_relative}

__all__ = ["ADVANTAGES", "group_relative"]
