"""Hostile input by the million: mutated messages for every codec, and for endpoints of a running service."""
