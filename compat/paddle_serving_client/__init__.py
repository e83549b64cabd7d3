"""Paddle Serving's client and conversion names for Paddlewheel's own."""

from paddle_serving_server.ours import claim, refuse_originals

refuse_originals()
claim("pipeline", "client")

from paddle_serving_client.client import Client, HttpClient  # noqa: E402  our packages are claimed first

__all__ = ["Client", "HttpClient"]
