"""What does a judge say?"""
