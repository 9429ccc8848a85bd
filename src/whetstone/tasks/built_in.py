"""Which sources of tasks can a recipe name? Each by its name."""

from whetstone.tasks.arithmetic import Arithmetic
from whetstone.tasks.file import File
from whetstone.tasks.function_calls import FunctionCalls
from whetstone.tasks.gsm8k import GSM8K
from whetstone.tasks.humaneval import HumanEval
from whetstone.tasks.jsonl import Jsonl
from whetstone.tasks.rows import HuggingFace, Parquet

SOURCES = {
    "arithmetic": Arithmetic,
    "file": File,
    "function_calls": FunctionCalls,
    "gsm8k": GSM8K,
    "huggingface": HuggingFace,
    "humaneval": HumanEval,
    "jsonl": Jsonl,
    "parquet": Parquet,
}
