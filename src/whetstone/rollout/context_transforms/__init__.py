"""Context transforms: texts that the policy reads in addition to the environment's messages."""

from whetstone.rollout.context_transforms.budget_line import BudgetLine as BudgetLine
from whetstone.rollout.context_transforms.example_selection import ExampleSelection as ExampleSelection
from whetstone.rollout.context_transforms.demonstration_prompt import DemonstrationPrompt as DemonstrationPrompt
from whetstone.rollout.context_transforms.experience import Experience as Experience
from whetstone.rollout.context_transforms.hint import Hint as Hint
from whetstone.rollout.context_transforms.prompt_population import Instructions as Instructions
from whetstone.rollout.context_transforms.lessons import Lessons as Lessons
from whetstone.rollout.context_transforms.own_episodes import OwnEpisodes as OwnEpisodes
from whetstone.rollout.context_transforms.rubric_prompt import RubricPrompt as RubricPrompt

CONTEXT_TRANSFORMS = {
    "budget_line": BudgetLine,
    "example_selection": ExampleSelection,
    "demonstrations": DemonstrationPrompt,
    "experience": Experience,
    "hint": Hint,
    "instructions": Instructions,
    "lessons": Lessons,
    "own_episodes": OwnEpisodes,
    "rubric": RubricPrompt,
}
