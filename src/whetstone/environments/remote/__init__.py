"""Environments on servers: the server and client of Whetstone, and clients of other projects' servers."""
