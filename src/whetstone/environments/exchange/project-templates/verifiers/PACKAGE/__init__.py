"""Taskset of an exported environment."""

from .taskset import ExportedTaskset

__all__ = ["ExportedTaskset"]
