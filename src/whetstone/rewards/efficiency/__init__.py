"""Rewards for efficiency: number of tool calls, turns, tokens and cost."""
