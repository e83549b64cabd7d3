"""Compares the outputs of two copies of a model: the inputs, the comparison, and its reports."""
