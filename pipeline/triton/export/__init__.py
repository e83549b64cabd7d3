"""Export of text services as model repositories that any Triton runs: `paddlewheel export triton`."""
