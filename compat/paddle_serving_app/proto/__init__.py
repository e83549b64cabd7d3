"""Paddle Serving's messages that apps read model descriptions with."""
