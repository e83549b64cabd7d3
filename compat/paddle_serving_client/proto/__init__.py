"""The protobuf messages that describe a model's inputs and outputs."""
