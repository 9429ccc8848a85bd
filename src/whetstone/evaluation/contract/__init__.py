"""Does an environment keep what environments promise? Tried on ours and on anybody's, in a minute."""

from typing import TYPE_CHECKING

from whetstone.window import window

if TYPE_CHECKING:
    from whetstone.evaluation.contract.checks import Contract, check_contract
    from whetstone.evaluation.contract.playing import Played, play
    from whetstone.evaluation.contract.random_policy import RandomPolicy

__getattr__, __dir__ = window(__name__)

__all__ = ["Contract", "Played", "RandomPolicy", "check_contract", "play"]
