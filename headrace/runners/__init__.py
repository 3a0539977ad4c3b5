"""The workflows, written out: who calls whom, in which order, over which channels."""
