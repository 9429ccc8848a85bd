"""Lazy import of the official MCP SDK."""

from __future__ import annotations

from whetstone.errors import RecipeError
from whetstone.optional_dependencies import install_command


class _Sdk:
    def __init__(self) -> None:
        try:
            import mcp
            import mcp.client.sse
            import mcp.client.stdio
            import mcp.client.streamable_http
            import mcp.server.stdio
            import mcp.shared.exceptions
            import mcp_types
        except ImportError:
            raise RecipeError(f"mcp: the SDK is not installed: {install_command('mcp')}") from None
        self.types, self.Client, self.Server = mcp_types, mcp.Client, mcp.server.Server
        self.StdioServerParameters, self.stdio_server = mcp.StdioServerParameters, mcp.server.stdio.stdio_server
        self.stdio_client = mcp.client.stdio.stdio_client
        self.streamable_http_client = mcp.client.streamable_http.streamable_http_client
        self.sse_client = mcp.client.sse.sse_client
        self.MCPError = mcp.shared.exceptions.MCPError


_loaded: list[_Sdk] = []


def load_sdk() -> _Sdk:
    """Import the MCP SDK once and return the parts that Whetstone uses.

    Raises:
        RecipeError: If the SDK is not installed.
    """
    if not _loaded:
        _loaded.append(_Sdk())
    return _loaded[0]
