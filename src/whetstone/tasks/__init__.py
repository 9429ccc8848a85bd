"""Where tasks come from."""

from whetstone.tasks.arithmetic import Arithmetic
from whetstone.tasks.curricula import CURRICULA, tag_of
from whetstone.tasks.gsm8k import GSM8K
from whetstone.tasks.jsonl import Jsonl, read_tasks
from whetstone.tasks.protocol import Curriculum, Expert, Source

SOURCES = {"arithmetic": Arithmetic, "gsm8k": GSM8K, "jsonl": Jsonl}

__all__ = [
    "CURRICULA",
    "GSM8K",
    "SOURCES",
    "Arithmetic",
    "Curriculum",
    "Expert",
    "Jsonl",
    "Source",
    "read_tasks",
    "tag_of",
]
