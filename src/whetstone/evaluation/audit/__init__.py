"""The reward doctor: can a reward be fooled?"""

from whetstone.evaluation.audit.doctor import Audit, Tried
from whetstone.evaluation.audit.players import PLAYERS

__all__ = ["PLAYERS", "Audit", "Tried"]
