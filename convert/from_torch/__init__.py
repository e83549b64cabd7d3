"""`paddlewheel convert torch`: from a PyTorch model to Paddle, ONNX or TorchScript."""
