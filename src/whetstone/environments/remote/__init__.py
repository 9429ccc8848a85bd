"""Environments behind an address: ours, served for others, and the servers others have."""
