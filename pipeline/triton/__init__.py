"""Triton model repositories: what `paddlewheel serve --model-repository` reads and runs."""
