"""What became of the world?"""
