"""Gated rewards: terms that count only if another one does."""
