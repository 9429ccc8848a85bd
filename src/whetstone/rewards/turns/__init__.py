"""What was each turn worth by itself?"""
