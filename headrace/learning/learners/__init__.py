"""The learner: loss, backward, optimiser, and the port to its peers."""
