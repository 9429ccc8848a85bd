"""Functions a model can call, and how a call is checked, run and answered."""

from whetstone.tools.calculator import calculator, pocket_calculator
from whetstone.tools.memory import fold_memory
from whetstone.tools.schema import Tool, tool_from_function
from whetstone.tools.toolset import Answer, Toolset

TOOLS = {"calculator": calculator, "fold_memory": fold_memory, "pocket_calculator": pocket_calculator}

__all__ = ["TOOLS", "Answer", "Tool", "Toolset", "calculator", "fold_memory", "pocket_calculator", "tool_from_function"]
