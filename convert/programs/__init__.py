"""Models that can be run: what they take, inputs for them, their engines."""
