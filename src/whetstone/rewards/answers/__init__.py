"""Rewards for the final answer of an episode."""
