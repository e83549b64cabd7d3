"""The command line of `python -m convert`: one file for each group of its commands."""
