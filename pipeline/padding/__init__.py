"""The padding proof, for the conversion and for model repositories."""
