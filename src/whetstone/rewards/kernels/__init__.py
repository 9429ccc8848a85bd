"""Rewards for the speed of code (KernelBench-style)."""
