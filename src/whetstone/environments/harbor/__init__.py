"""Harbor task folders: tasks with an instruction, a container, tests and a solution."""
