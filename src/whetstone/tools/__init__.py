"""Tools that a model can call: built-in tools, tools from functions and servers, and the execution of calls."""

from typing import TYPE_CHECKING

from whetstone.lazy_imports import export_lazily

if TYPE_CHECKING:
    from whetstone.tools.submit_tool import finish as finish, submit as submit
    from whetstone.tools.arithmetic_tools import calculator as calculator, pocket_calculator as pocket_calculator
    from whetstone.tools.tool_budget import Budget as Budget
    from whetstone.tools.built_in import TOOLS as TOOLS
    from whetstone.tools.tool_retrieval import ToolCatalog as ToolCatalog
    from whetstone.tools.http import Http as Http
    from whetstone.tools.image import ImageTools as ImageTools
    from whetstone.tools.mcp_tools import Mcp as Mcp
    from whetstone.tools.fold_memory_tool import fold_memory as fold_memory
    from whetstone.tools.model_tools import FrozenModel as FrozenModel, Models as Models, find_model as find_model
    from whetstone.tools.notes import Notes as Notes
    from whetstone.tools.openapi import OpenApi as OpenApi
    from whetstone.tools.protocol import Episode as Episode, Result as Result
    from whetstone.tools.sandbox_tools import Files as Files, Python as Python, Shell as Shell
    from whetstone.tools.schema import Tool as Tool, tool_from_function as tool_from_function
    from whetstone.tools.search import HttpSearch as HttpSearch, Search as Search
    from whetstone.tools.side_effects import CallPolicy as CallPolicy, Effect as Effect, effects as effects
    from whetstone.tools.simulated import Simulated as Simulated
    from whetstone.tools.sql import Sql as Sql
    from whetstone.tools.toolset import Answer as Answer, Toolset as Toolset

__getattr__, __dir__ = export_lazily(__name__)
