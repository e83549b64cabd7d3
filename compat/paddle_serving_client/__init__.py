"""The package `paddle_serving_client` of Paddle Serving: model conversion, and errors for the C++ clients."""

from paddle_serving_server.ours import claim, refuse_originals

refuse_originals()
claim("pipeline", "client")

from paddle_serving_client import version  # noqa: E402  our packages are claimed first
from paddle_serving_client.client import Client, HttpClient  # noqa: E402  our packages are claimed first

__version__ = version.version_tag
__all__ = ["Client", "HttpClient"]
