"""Conformance suite for trainers: a small world, checks of silent failures, and an adapter per trainer."""
