"""`paddlewheel convert onnx` and `to-onnx`: convert models from ONNX to Paddle and from Paddle to ONNX."""
