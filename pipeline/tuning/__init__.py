"""Measured settings of a service: values for `auto` in config.yml, and the search of `paddlewheel tune`."""
