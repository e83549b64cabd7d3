"""The protobuf messages with which Paddle Serving describes a model's inputs and outputs."""
