"""The same messages under this package's name."""

from paddle_serving_server.proto.general_model_config_pb2 import FeedVar, FetchVar, GeneralModelConfig

__all__ = ["FeedVar", "FetchVar", "GeneralModelConfig"]
