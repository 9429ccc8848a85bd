"""What runs on the other side: inside the sandbox, with the standard library alone and no way back."""
