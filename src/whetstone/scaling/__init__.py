"""Training of one recipe on many machines, and the prediction of its memory and speed."""

from typing import TYPE_CHECKING

from whetstone.lazy_imports import export_lazily

if TYPE_CHECKING:
    from whetstone.scaling.placement_plan import (
        Balance as Balance,
        PlacementPlan as PlacementPlan,
        best_plan as best_plan,
        own_balance as own_balance,
    )
    from whetstone.scaling.plan_rates import Rates as Rates, read_rates as read_rates

__getattr__, __dir__ = export_lazily(__name__)
