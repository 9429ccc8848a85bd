"""Guest code: runs inside the sandbox, with only the standard library."""
