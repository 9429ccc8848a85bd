"""Functions a model can call, and how a call is checked, run and answered."""

from whetstone.tools.calculator import calculator, pocket_calculator
from whetstone.tools.memory import fold_memory
from whetstone.tools.protocol import Episode, Result
from whetstone.tools.schema import Tool, tool_from_function
from whetstone.tools.search import HttpSearch, Search
from whetstone.tools.sql import Sql
from whetstone.tools.submit import finish, submit
from whetstone.tools.toolset import Answer, Toolset
from whetstone.tools.workplace import Files, Python, Shell

TOOLS = {
    "calculator": calculator,
    "files": Files,
    "finish": finish,
    "fold_memory": fold_memory,
    "pocket_calculator": pocket_calculator,
    "python": Python,
    "http_search": HttpSearch,
    "search": Search,
    "shell": Shell,
    "sql": Sql,
    "submit": submit,
}

__all__ = [
    "TOOLS",
    "Answer",
    "Episode",
    "Files",
    "Python",
    "Result",
    "Shell",
    "Tool",
    "Toolset",
    "calculator",
    "finish",
    "fold_memory",
    "pocket_calculator",
    "submit",
    "tool_from_function",
]
