"""Containers of episodes: one container of podman or docker per session, with its own image and file system."""
