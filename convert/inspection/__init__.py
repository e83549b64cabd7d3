"""`paddlewheel convert check` and `shapes`: comparisons and shapes of models."""
