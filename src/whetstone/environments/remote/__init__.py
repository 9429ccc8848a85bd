"""Environments on servers: server and client of Whetstone's protocol, and clients of other projects' servers."""
