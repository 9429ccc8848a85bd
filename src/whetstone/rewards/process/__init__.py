"""Process rewards: rewards per turn."""
