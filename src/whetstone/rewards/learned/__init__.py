"""Rewards from a trained reward model."""
