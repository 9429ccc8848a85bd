"""How much faster is it, and is that so?"""
