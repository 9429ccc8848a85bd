"""What runs in a database's process; it needs nothing but Python, and what speaks to the kernel in `sandbox.guest`."""
