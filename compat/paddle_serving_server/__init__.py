"""Paddle Serving's server names for Paddlewheel's classes."""

from paddle_serving_server.ours import claim, refuse_originals

refuse_originals()
claim("pipeline", "client")
