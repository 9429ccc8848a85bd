"""Registry of task sources by their names in recipes."""

from whetstone.tasks.arithmetic import Arithmetic
from whetstone.tasks.constrained_instructions import ConstrainedInstructions
from whetstone.tasks.file import File
from whetstone.tasks.function_call_tasks import FunctionCalls
from whetstone.tasks.gsm8k import GSM8K
from whetstone.tasks.humaneval import HumanEval
from whetstone.tasks.jsonl import Jsonl
from whetstone.tasks.masked_documents import Masked
from whetstone.tasks.tabular import HuggingFace, Parquet
from whetstone.tasks.tool_requests import ToolRequests

SOURCES = {
    "arithmetic": Arithmetic,
    "constraints": ConstrainedInstructions,
    "file": File,
    "function_calls": FunctionCalls,
    "gsm8k": GSM8K,
    "huggingface": HuggingFace,
    "humaneval": HumanEval,
    "jsonl": Jsonl,
    "masked": Masked,
    "parquet": Parquet,
    "tool_requests": ToolRequests,
}
"""Task sources by their name in a recipe (`tasks.source`)."""
