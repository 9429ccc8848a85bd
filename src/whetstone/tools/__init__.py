"""Functions a model can call, and how a call is checked, run and answered."""

from typing import TYPE_CHECKING

from whetstone.window import window

if TYPE_CHECKING:
    from whetstone.tools.answering import finish, submit
    from whetstone.tools.arithmetic import calculator, pocket_calculator
    from whetstone.tools.budget import Budget
    from whetstone.tools.built_in import TOOLS
    from whetstone.tools.catalogue import Catalogue
    from whetstone.tools.http import Http
    from whetstone.tools.image import ImageTools
    from whetstone.tools.mcp import Mcp
    from whetstone.tools.memory import fold_memory
    from whetstone.tools.models import FrozenModel, Models, model_named
    from whetstone.tools.notes import Notes
    from whetstone.tools.openapi import OpenApi
    from whetstone.tools.protocol import Episode, Result
    from whetstone.tools.sandbox_tools import Files, Python, Shell
    from whetstone.tools.schema import Tool, tool_from_function
    from whetstone.tools.search import HttpSearch, Search
    from whetstone.tools.side_effects import CallPolicy, Effect, effects
    from whetstone.tools.simulated import Simulated
    from whetstone.tools.sql import Sql
    from whetstone.tools.toolset import Answer, Toolset

__getattr__, __dir__ = window(__name__)

__all__ = [
    "TOOLS",
    "Answer",
    "Budget",
    "CallPolicy",
    "Catalogue",
    "Effect",
    "Episode",
    "Files",
    "FrozenModel",
    "Http",
    "HttpSearch",
    "ImageTools",
    "Mcp",
    "Models",
    "Notes",
    "OpenApi",
    "Python",
    "Result",
    "Search",
    "Shell",
    "Simulated",
    "Sql",
    "Tool",
    "Toolset",
    "calculator",
    "effects",
    "finish",
    "fold_memory",
    "model_named",
    "pocket_calculator",
    "submit",
    "tool_from_function",
]
