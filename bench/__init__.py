"""Measurements of the service; each module is run by hand as `python -m bench.<name>`."""
