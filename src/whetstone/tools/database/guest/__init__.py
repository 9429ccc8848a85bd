"""Guest code of database processes, with only the standard library and the system calls of `sandbox.guest`."""
