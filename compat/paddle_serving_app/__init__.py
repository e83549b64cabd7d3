"""Paddle Serving's names for what apps read their inputs with."""

from paddle_serving_app import version
from paddle_serving_server.ours import claim, refuse_originals

refuse_originals()
claim("pipeline")

__version__ = version.version_tag
