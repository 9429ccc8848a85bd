"""Where tasks come from."""

from typing import TYPE_CHECKING

from whetstone.window import window

if TYPE_CHECKING:
    from whetstone.tasks.arithmetic import Arithmetic
    from whetstone.tasks.built_in import SOURCES
    from whetstone.tasks.curricula import CURRICULA, tag_of
    from whetstone.tasks.file import File
    from whetstone.tasks.formats import FORMATS
    from whetstone.tasks.function_calls import FunctionCalls
    from whetstone.tasks.generated import Generated
    from whetstone.tasks.gsm8k import GSM8K
    from whetstone.tasks.humaneval import HumanEval
    from whetstone.tasks.jsonl import Jsonl, read_tasks
    from whetstone.tasks.protocol import Curriculum, Expert, Source
    from whetstone.tasks.rows import HuggingFace, Parquet

__getattr__, __dir__ = window(__name__)

__all__ = [
    "CURRICULA",
    "FORMATS",
    "GSM8K",
    "SOURCES",
    "Arithmetic",
    "Curriculum",
    "Expert",
    "File",
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
