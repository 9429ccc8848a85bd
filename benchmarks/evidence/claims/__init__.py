"""Benches of published claims: contenders on the same tasks and budget, measures, and effects over seeds."""
