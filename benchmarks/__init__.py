"""Benchmarks: each measures headrace beside a peer or a physical limit in one run."""
