"""Comparisons of two forms of a model, their inputs and their reports."""
