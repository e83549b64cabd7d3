"""`paddlewheel convert check` and `shapes`: compare models, and find input shape ranges for TensorRT."""
