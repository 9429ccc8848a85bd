"""Registry of built-in tools by their name in recipes."""

from whetstone.tools.arithmetic_tools import calculator, pocket_calculator
from whetstone.tools.fold_memory_tool import fold_memory
from whetstone.tools.http import Http
from whetstone.tools.image import ImageTools
from whetstone.tools.mcp_tools import Mcp
from whetstone.tools.model_tools import Models
from whetstone.tools.notes import Notes
from whetstone.tools.openapi import OpenApi
from whetstone.tools.sandbox_tools import Files, Python, Shell
from whetstone.tools.search import HttpSearch, Search
from whetstone.tools.simulated import Simulated
from whetstone.tools.sql import Sql
from whetstone.tools.submit_tool import finish, submit
from whetstone.tools.tool_budget import Budget
from whetstone.tools.tool_retrieval import ToolCatalog

TOOLS = {
    "budget": Budget,
    "calculator": calculator,
    "catalog": ToolCatalog,
    "files": Files,
    "finish": finish,
    "fold_memory": fold_memory,
    "http": Http,
    "http_search": HttpSearch,
    "image": ImageTools,
    "mcp": Mcp,
    "models": Models,
    "notes": Notes,
    "openapi": OpenApi,
    "pocket_calculator": pocket_calculator,
    "python": Python,
    "search": Search,
    "shell": Shell,
    "simulated": Simulated,
    "sql": Sql,
    "submit": submit,
}
