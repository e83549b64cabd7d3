"""`paddlewheel convert all`: from any source to a serving model."""
