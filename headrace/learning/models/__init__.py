"""Networks: RLModule, its parts and its distributions."""
