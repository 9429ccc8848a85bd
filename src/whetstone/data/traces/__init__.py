"""Traces: conversations in the exports of observability tools, as training data, and episodes as spans."""
