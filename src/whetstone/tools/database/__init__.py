"""Databases for the `sql` tool: SQLite and DuckDB in a dedicated process, PostgreSQL on a server."""

from whetstone.tools.database.postgresql import PostgreSQL as PostgreSQL
from whetstone.tools.database.process import DatabaseProcess as DatabaseProcess, Origin as Origin
from whetstone.tools.database.protocol import Database as Database, Result as Result
