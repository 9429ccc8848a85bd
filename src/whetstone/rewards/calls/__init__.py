"""Are the calls of an episode the right ones?"""
