"""What did an episode answer, and is it right?"""
