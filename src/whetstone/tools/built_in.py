"""Which tools can a recipe name? Each by its name, and the function or class it stands for."""

from whetstone.tools.answering import finish, submit
from whetstone.tools.arithmetic import calculator, pocket_calculator
from whetstone.tools.budget import Budget
from whetstone.tools.catalogue import Catalogue
from whetstone.tools.http import Http
from whetstone.tools.image import ImageTools
from whetstone.tools.mcp import Mcp
from whetstone.tools.memory import fold_memory
from whetstone.tools.models import Models
from whetstone.tools.notes import Notes
from whetstone.tools.openapi import OpenApi
from whetstone.tools.sandbox_tools import Files, Python, Shell
from whetstone.tools.search import HttpSearch, Search
from whetstone.tools.simulated import Simulated
from whetstone.tools.sql import Sql

TOOLS = {
    "budget": Budget,
    "calculator": calculator,
    "catalog": Catalogue,
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
