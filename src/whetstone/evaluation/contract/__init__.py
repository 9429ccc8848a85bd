"""Does an environment keep what environments promise? Tried on ours and on anybody's, in a minute."""

from whetstone.evaluation.contract.checks import Contract, check_contract
from whetstone.evaluation.contract.playing import Played, play
from whetstone.evaluation.contract.random_policy import RandomPolicy

__all__ = ["Contract", "Played", "RandomPolicy", "check_contract", "play"]
