"""Runs conversion steps in separate processes with the converters' packages, and reports their progress."""
