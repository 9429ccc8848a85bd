"""Environments of other packages as Whetstone environments. Each requires its package, which an extra of Whetstone
installs, and reports if it is missing."""
