"""`paddlewheel convert torch`: converts a PyTorch model to Paddle, ONNX or TorchScript."""
