"""Early stopping of episodes: rules that end an episode before the environment does."""

from whetstone.rollout.early_stopping.stragglers import StragglerStop as StragglerStop
from whetstone.rollout.early_stopping.budget_exhausted import BudgetExhausted as BudgetExhausted
from whetstone.rollout.early_stopping.void_turn import VoidTurn as VoidTurn

from whetstone.rollout.early_stopping.control_episodes import estimate_early_stopping as estimate_early_stopping

STOPS = {"stragglers": StragglerStop, "budget_exhausted": BudgetExhausted, "void_turn": VoidTurn}
