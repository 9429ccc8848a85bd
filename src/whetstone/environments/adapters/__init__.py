"""Environments of other packages as Whetstone environments. Each adapter requires its package, which an extra of
Whetstone installs, and reports if the package is missing.
"""
