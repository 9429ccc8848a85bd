"""Rewards from a judge (LLM-as-a-judge)."""
