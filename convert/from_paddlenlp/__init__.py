"""`paddlewheel convert paddle` for a PaddleNLP model: exports configuration and weights to a Paddle model."""
