"""Which groups count towards those an update takes."""

from whetstone.rollout.refills.informative import Informative

REFILLS = {"informative": Informative}

__all__ = ["REFILLS", "Informative"]
