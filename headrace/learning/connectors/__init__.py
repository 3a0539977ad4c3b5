"""Between environment and module: observations in, actions out. Numpy only."""
