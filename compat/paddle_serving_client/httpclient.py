"""`from paddle_serving_client.httpclient import HttpClient`."""

from paddle_serving_client.client import HttpClient

__all__ = ["HttpClient"]
