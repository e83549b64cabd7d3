"""Triton model repositories, for `paddlewheel serve --model-repository`: reader, export, Python models."""
