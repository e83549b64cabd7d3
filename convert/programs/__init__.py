"""Exported Paddle and ONNX models on disk: their inputs and outputs, random inputs, and running them."""
