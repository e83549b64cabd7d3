"""Measured settings: the engine and precision in place of `auto`, and the search of `paddlewheel tune`."""
