"""`paddlewheel convert all`: converts a model of any supported source to a serving model."""
