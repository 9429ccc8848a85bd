"""What the policy reads beside what the environment said."""

from whetstone.rollout.views.budget_line import BudgetLine
from whetstone.rollout.views.demonstrations import Demonstrations
from whetstone.rollout.views.experience import Experience
from whetstone.rollout.views.hint import Hint
from whetstone.rollout.views.instructions import Instructions
from whetstone.rollout.views.lessons import Lessons
from whetstone.rollout.views.rubric import Rubric

VIEWS = {
    "budget_line": BudgetLine,
    "demonstrations": Demonstrations,
    "experience": Experience,
    "hint": Hint,
    "instructions": Instructions,
    "lessons": Lessons,
    "rubric": Rubric,
}

__all__ = ["VIEWS", "BudgetLine", "Demonstrations", "Experience", "Hint", "Instructions", "Lessons", "Rubric"]
