"""Task sources, file formats of tasks, and curricula."""

from typing import TYPE_CHECKING

from whetstone.lazy_imports import export_lazily

if TYPE_CHECKING:
    from whetstone.tasks.arithmetic import Arithmetic as Arithmetic
    from whetstone.tasks.built_in import SOURCES as SOURCES
    from whetstone.tasks.curricula import CURRICULA as CURRICULA, get_tag as get_tag
    from whetstone.tasks.file import File as File
    from whetstone.tasks.formats import FORMATS as FORMATS
    from whetstone.tasks.function_call_tasks import FunctionCalls as FunctionCalls
    from whetstone.tasks.generated import Generated as Generated
    from whetstone.tasks.gsm8k import GSM8K as GSM8K
    from whetstone.tasks.humaneval import HumanEval as HumanEval
    from whetstone.tasks.jsonl import Jsonl as Jsonl, read_tasks as read_tasks
    from whetstone.tasks.protocol import Curriculum as Curriculum, Expert as Expert, Source as Source
    from whetstone.tasks.tabular import HuggingFace as HuggingFace, Parquet as Parquet

__getattr__, __dir__ = export_lazily(__name__)
