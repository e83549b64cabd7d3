"""The messages that describe a model."""
