"""`paddlewheel convert paddle`, of a PaddleNLP model: from its configuration and weights to a program."""
