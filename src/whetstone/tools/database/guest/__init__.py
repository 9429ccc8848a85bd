"""Code of the database process. It imports only the standard library and the system-call wrappers of
`sandbox.guest`."""
