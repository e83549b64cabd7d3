"""The output of a conversion: atomic folders, stamps, and terminal streams."""
