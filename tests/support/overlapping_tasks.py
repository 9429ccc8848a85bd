"""Sources with evaluation tasks among their training tasks."""

from whetstone.tasks.finite_source import ListedTasks
from whetstone.trajectory import Task

TRAINING = [
    Task("same-id", "Compute 1+2", {"answer": "3"}),
    Task("a", "Compute 11*12", {"answer": "132", "row": 1}),
    Task("b", "compute  13*14.", {"answer": "182", "row": 2}),
    Task("c", "Compute (15+16)*17", {"answer": "527", "row": 3}),
    Task("d", "Which city is largest?", {"answer": "Rome", "row": 4}),
]
HELD_OUT = [
    Task("same-id", "Compute 1 + 2 + 0", {"answer": "3"}),
    Task("A", "Compute 11*12", {"answer": "132", "row": 11}),
    Task("B", "Compute 13*14", {"answer": "182", "row": 12}),
    Task("C", "Compute (15*16)+17", {"answer": "257", "row": 13}),
    Task("D", "Which city is largest?", {"answer": "Oslo", "row": 14}),
    Task("E", "Compute 20*21", {"answer": "420"}),
]


class Twice(ListedTasks):
    """A list of tasks with some of its evaluation tasks among the training tasks."""

    def __init__(self, *, seed: int = 0) -> None:
        super().__init__(TRAINING, HELD_OUT, seed=seed)


class Endless:
    """The same tasks from a source that generates them."""

    def task(self, index):
        """Return a training task."""
        return TRAINING[index % len(TRAINING)]

    def held_out(self, count):
        """Return the evaluation tasks."""
        return HELD_OUT[:count]
