"""`paddlewheel convert paddle` for a `paddle.nn.Layer`: exports it to a Paddle inference model."""
