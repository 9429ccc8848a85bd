"""What counts only where something else does?"""
