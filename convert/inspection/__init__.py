"""`paddlewheel convert check` and `shapes`: what can be told of a model."""
