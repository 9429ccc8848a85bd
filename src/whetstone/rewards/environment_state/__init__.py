"""Rewards from the final state of the environment, and from running the answer's code."""
