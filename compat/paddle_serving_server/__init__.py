"""The package `paddle_serving_server` of Paddle Serving, with Paddlewheel's classes.

Importing it also restores NumPy 1's names, which old service scripts use.
"""

from paddle_serving_server import version
from paddle_serving_server.cpp_server import refuse_server_names
from paddle_serving_server.ours import claim, refuse_originals

refuse_originals()
claim("pipeline", "client")

from client.errors import numpy_required  # noqa: E402 - `claim` has found the package

with numpy_required():
    from pipeline.paddle_serving.numpy_1 import install_numpy_1_names

install_numpy_1_names()  # a script of that time may use them before it serves

__version__ = version.version_tag
__getattr__ = refuse_server_names(__name__)
