"""Worlds of other packages behind our seam. Each needs its package, an extra of ours, and says so where it is
missing."""
