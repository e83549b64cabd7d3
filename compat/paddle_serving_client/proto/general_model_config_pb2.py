"""`from paddle_serving_client.proto import general_model_config_pb2`."""

from paddle_serving_server.proto.general_model_config_pb2 import FeedVar, FetchVar, GeneralModelConfig

__all__ = ["FeedVar", "FetchVar", "GeneralModelConfig"]
