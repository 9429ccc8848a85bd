"""Built-in environments: small, seeded, solvable, without dependencies. Each file has the rules, the tasks and the
expert.
"""
