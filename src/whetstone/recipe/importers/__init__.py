"""Importers of configurations of TRL and verl, and the names of other libraries for keys of a recipe."""
