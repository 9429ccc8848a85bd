"""Where tasks come from."""

from whetstone.tasks.arithmetic import Arithmetic
from whetstone.tasks.curricula import CURRICULA, tag_of
from whetstone.tasks.function_calls import FunctionCalls
from whetstone.tasks.generated import Generated
from whetstone.tasks.gsm8k import GSM8K
from whetstone.tasks.humaneval import HumanEval
from whetstone.tasks.jsonl import Jsonl, read_tasks
from whetstone.tasks.protocol import Curriculum, Expert, Source
from whetstone.tasks.rows import HuggingFace, Parquet

SOURCES = {
    "arithmetic": Arithmetic,
    "function_calls": FunctionCalls,
    "gsm8k": GSM8K,
    "huggingface": HuggingFace,
    "humaneval": HumanEval,
    "jsonl": Jsonl,
    "parquet": Parquet,
}

__all__ = [
    "CURRICULA",
    "GSM8K",
    "SOURCES",
    "Arithmetic",
    "Curriculum",
    "Expert",
    "FunctionCalls",
    "Generated",
    "HuggingFace",
    "HumanEval",
    "Jsonl",
    "Parquet",
    "Source",
    "read_tasks",
    "tag_of",
]
