"""The command line of `paddlewheel convert`: one file for each group of its commands."""
