"""What the policy reads beside what the environment said."""

from whetstone.rollout.context_transforms.budget_line import BudgetLine
from whetstone.rollout.context_transforms.chosen_examples import ChosenExamples
from whetstone.rollout.context_transforms.demonstrations import Demonstrations
from whetstone.rollout.context_transforms.experience import Experience
from whetstone.rollout.context_transforms.hint import Hint
from whetstone.rollout.context_transforms.instructions import Instructions
from whetstone.rollout.context_transforms.lessons import Lessons
from whetstone.rollout.context_transforms.rubric import Rubric

CONTEXT_TRANSFORMS = {
    "budget_line": BudgetLine,
    "example_selection": ChosenExamples,
    "demonstrations": Demonstrations,
    "experience": Experience,
    "hint": Hint,
    "instructions": Instructions,
    "lessons": Lessons,
    "rubric": Rubric,
}

__all__ = [
    "CONTEXT_TRANSFORMS",
    "BudgetLine",
    "ChosenExamples",
    "Demonstrations",
    "Experience",
    "Hint",
    "Instructions",
    "Lessons",
    "Rubric",
]
