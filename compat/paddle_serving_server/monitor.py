"""Import path of the C++ server's model monitors; importing a name raises an error with the alternative."""

from paddle_serving_server.cpp_server import refuse_names

MONITORS = ("FTPMonitor", "GeneralMonitor", "HadoopMonitor", "Monitor", "get_monitor", "start_monitor")

__getattr__ = refuse_names(
    __name__,
    MONITORS,
    "fetched models for Paddle Serving's C++ server, which is not part of Paddlewheel; copy the new model to "
    "a version folder of model_config (MODEL_DIR/2/) and send the service SIGHUP",
)
