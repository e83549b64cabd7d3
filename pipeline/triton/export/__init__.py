"""`paddlewheel export triton`: writes a text service as a model repository that any Triton runs."""
