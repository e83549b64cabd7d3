"""`paddlewheel convert onnx` and `to-onnx`: between Paddle and ONNX, both ways."""
