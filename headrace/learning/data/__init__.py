"""What flows: episodes, trajectories and the builder that packs them. Numpy only."""
