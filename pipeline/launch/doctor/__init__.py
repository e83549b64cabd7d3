"""`paddlewheel doctor`: whether this machine can serve, and the remedy for each miss."""
