"""Databases a model may ask: in a process of their own (SQLite, DuckDB), or on a server (PostgreSQL)."""

from whetstone.tools.database.postgresql import PostgreSQL
from whetstone.tools.database.process import DatabaseProcess, Origin
from whetstone.tools.database.protocol import Database, Result

__all__ = ["Database", "DatabaseProcess", "Origin", "PostgreSQL", "Result"]
