"""The reward doctor: can a reward be fooled?"""

from typing import TYPE_CHECKING

from whetstone.window import window

if TYPE_CHECKING:
    from whetstone.evaluation.audit.doctor import REWARD_VARIES, Audit, Tried
    from whetstone.evaluation.audit.players import PLAYERS

__getattr__, __dir__ = window(__name__)

__all__ = ["PLAYERS", "REWARD_VARIES", "Audit", "Tried"]
