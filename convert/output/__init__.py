"""Writes the output folders of conversions atomically, with a record of their sources."""
