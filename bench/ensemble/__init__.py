"""Compares an ensemble of tokenizer, ONNX model and postprocess with other servers of the same function."""
