"""Whetstone: reinforcement learning for language-model agents that use tools over many turns."""
