"""Targets of `benchmarks/robust/fuzz.py`, one file per target."""
