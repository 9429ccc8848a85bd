"""How much did it take?"""
