"""Import path of the C++ server's `HttpClient`, whose constructor raises an error."""

from paddle_serving_client.client import HttpClient

__all__ = ["HttpClient"]
