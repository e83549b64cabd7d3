"""Hostile input by the million: mutated messages for every codec and for the doors of a running service."""
