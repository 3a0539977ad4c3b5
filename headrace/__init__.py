"""headrace: reinforcement learning on the fastest course that the machine at hand allows."""

__version__ = "0.1.0"
