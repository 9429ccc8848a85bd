"""Where tasks come from."""

from whetstone.tasks.arithmetic import Arithmetic
from whetstone.tasks.curricula import CURRICULA, tag_of
from whetstone.tasks.generated import Generated
from whetstone.tasks.gsm8k import GSM8K
from whetstone.tasks.jsonl import Jsonl, read_tasks
from whetstone.tasks.protocol import Curriculum, Expert, Source
from whetstone.tasks.rows import HuggingFace, Parquet

SOURCES = {"arithmetic": Arithmetic, "gsm8k": GSM8K, "huggingface": HuggingFace, "jsonl": Jsonl, "parquet": Parquet}

__all__ = [
    "CURRICULA",
    "GSM8K",
    "SOURCES",
    "Arithmetic",
    "Curriculum",
    "Expert",
    "Generated",
    "HuggingFace",
    "Jsonl",
    "Parquet",
    "Source",
    "read_tasks",
    "tag_of",
]
