"""How do other programs ask for an answer over the wire? The shapes of the APIs they speak, read and written."""
