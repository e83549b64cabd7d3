"""Steps of a conversion: their progress, and their processes in the conversion environment."""
