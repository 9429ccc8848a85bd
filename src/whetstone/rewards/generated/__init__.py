"""Rewards whose code a model wrote, read by a person before it is used."""
