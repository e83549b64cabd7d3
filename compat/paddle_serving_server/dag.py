"""Import path of the C++ server's graph builders; importing a name raises an error with the alternative."""

from paddle_serving_server.cpp_server import refuse_server_names

__getattr__ = refuse_server_names(__name__)
