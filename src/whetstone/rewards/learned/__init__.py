"""What does a model of rewards say, which learns itself?"""
