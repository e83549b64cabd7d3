"""The version of Paddle Serving whose behaviour this package has."""

version_tag = "0.9.0"
