"""Worlds of our own: small, seeded, solvable, with nothing to install. Each file has the rules, the tasks, the
expert."""
