"""Process rewards: a reward per turn."""
