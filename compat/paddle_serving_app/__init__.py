"""The package `paddle_serving_app` of Paddle Serving, reimplemented: readers and `LocalPredictor`."""

from paddle_serving_app import version
from paddle_serving_server.ours import claim, refuse_originals

refuse_originals()
claim("pipeline")

__version__ = version.version_tag
