"""A run in miniature: the demo with a model of a few thousand parameters and two steps a stage."""

SMALL = [
    "policy.tiny.hidden=16",
    "policy.tiny.heads=2",
    "policy.tiny.layers=1",
    "policy.tiny.intermediate=16",
    "supervised.steps=2",
    "supervised.batch_size=4",
    "training.steps=2",
    "training.tasks_per_step=2",
    "rollout.group_size=2",
    "rollout.max_new_tokens=6",
    "evaluation.episodes=4",
]
