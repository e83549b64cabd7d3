"""The version of Paddle Serving whose behaviour this package has."""

version_tag = "0.9.0"
module_proto_version = "0.0.0"
