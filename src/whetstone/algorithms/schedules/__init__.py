"""Weights that change over a run, as functions of the step alone, so that a run that goes on has them again."""

from whetstone.algorithms.schedules.over_steps import adaptive_weight, mixing_weight, phase_weight, replay_weight

__all__ = ["adaptive_weight", "mixing_weight", "phase_weight", "replay_weight"]
