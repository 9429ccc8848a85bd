"""How does the same recipe run on many machines, and what will that come to?"""
