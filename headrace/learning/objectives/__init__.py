"""The maths: advantages, losses, divergences, aggregation. Pure functions of tensors."""
