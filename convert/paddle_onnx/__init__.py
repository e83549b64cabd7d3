"""`python -m convert onnx` and `to-onnx`: between Paddle and ONNX, both ways."""
