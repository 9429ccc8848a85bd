"""Credit: from rewards to advantages."""

from whetstone.algorithms.advantages.gae import gae
from whetstone.algorithms.advantages.group_relative import group_relative
from whetstone.algorithms.advantages.whitened import whitened

ADVANTAGES = {"group_relative": group_relative}

__all__ = ["ADVANTAGES", "gae", "group_relative", "whitened"]
