"""Comparisons of two forms of a model, and what they found."""
