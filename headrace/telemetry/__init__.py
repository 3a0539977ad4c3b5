"""What a run says of itself: metrics, progress, timings, pictures."""
