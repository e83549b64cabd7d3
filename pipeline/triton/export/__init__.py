"""Services of texts as model repositories that any Triton runs: `paddlewheel export triton`."""
