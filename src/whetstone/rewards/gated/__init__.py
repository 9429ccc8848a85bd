"""Gated rewards: terms that count only if another term does."""
