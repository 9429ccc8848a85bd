"""Rewards that compare the tool calls of an episode with gold calls."""
