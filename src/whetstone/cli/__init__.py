"""Command line of Whetstone, one module per command."""
