"""Which task comes next."""

from whetstone.tasks.curricula.chosen import Chosen
from whetstone.tasks.curricula.coverage import Coverage
from whetstone.tasks.curricula.drawing import tag_of
from whetstone.tasks.curricula.generated import GeneratedTasks
from whetstone.tasks.curricula.pool import Pool
from whetstone.tasks.curricula.stages import StagedTasks
from whetstone.tasks.curricula.ucb import UpperBound

CURRICULA = {
    "task_subset": Chosen,
    "coverage": Coverage,
    "generated_tasks": GeneratedTasks,
    "pool": Pool,
    "stages": StagedTasks,
    "ucb": UpperBound,
}

__all__ = ["CURRICULA", "Chosen", "Coverage", "GeneratedTasks", "Pool", "StagedTasks", "UpperBound", "tag_of"]
