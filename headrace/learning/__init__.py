"""The learning wing: reinforcement learning that knows nothing of machines (no Ray in it)."""
