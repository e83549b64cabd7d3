"""The padding proof: tests whether padded inputs leave a model's outputs unchanged."""
