"""The version of Paddle Serving with whose behaviour this package is compatible."""

version_tag = "0.9.0"
version_suffix = ""
module_proto_version = "0.0.0"
device_type = "0"
