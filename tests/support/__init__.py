"""Helpers of tests, one module for each subject."""
