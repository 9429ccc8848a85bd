"""Training of one recipe on many machines, and the prediction of its memory and speed."""

from typing import TYPE_CHECKING

from whetstone.window import window

if TYPE_CHECKING:
    from whetstone.scaling.plan import Balance, Plan, best_plan, own_balance
    from whetstone.scaling.plan_rates import Rates, read_rates

__getattr__, __dir__ = window(__name__)

__all__ = ["Balance", "Plan", "Rates", "best_plan", "own_balance", "read_rates"]
