"""What `benchmarks/fuzz.py` throws at Whetstone: one file a target."""
