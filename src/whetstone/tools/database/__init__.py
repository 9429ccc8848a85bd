"""Databases of the `sql` tool: SQLite and DuckDB in a dedicated process, PostgreSQL on a server."""

from typing import TYPE_CHECKING

from whetstone.lazy_imports import export_lazily

if TYPE_CHECKING:
    from whetstone.tools.database.postgresql import PostgreSQL as PostgreSQL
    from whetstone.tools.database.process import DatabaseOrigin as DatabaseOrigin, DatabaseProcess as DatabaseProcess
    from whetstone.tools.database.protocol import Database as Database, QueryResult as QueryResult

__getattr__, __dir__ = export_lazily(__name__)
