"""Vector environments behind one short contract. Numpy only: environment workers run without torch."""
