"""Paddle Serving's names for what apps read their inputs with."""

from paddle_serving_server.ours import claim, refuse_originals

refuse_originals()
claim("pipeline")
