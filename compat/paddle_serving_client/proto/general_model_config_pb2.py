"""GeneralModelConfig under the import path of `paddle_serving_client`."""

from paddle_serving_server.proto.general_model_config_pb2 import FeedVar, FetchVar, GeneralModelConfig

__all__ = ["FeedVar", "FetchVar", "GeneralModelConfig"]
