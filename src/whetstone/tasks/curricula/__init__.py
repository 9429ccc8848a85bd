"""Curricula: selection of the next training task."""

from whetstone.tasks.curricula.task_subset import TaskSubset as TaskSubset
from whetstone.tasks.curricula.coverage import Coverage as Coverage
from whetstone.tasks.curricula.sample_task import get_tag as get_tag
from whetstone.tasks.curricula.generated_tasks import GeneratedTasks as GeneratedTasks
from whetstone.tasks.curricula.task_pool import Pool as Pool
from whetstone.tasks.curricula.staged import StagedTasks as StagedTasks
from whetstone.tasks.curricula.ucb import UpperBound as UpperBound

CURRICULA = {
    "task_subset": TaskSubset,
    "coverage": Coverage,
    "generated_tasks": GeneratedTasks,
    "pool": Pool,
    "stages": StagedTasks,
    "ucb": UpperBound,
}
"""Curricula by their name in a recipe."""
