"""Clients of a running service over HTTP and gRPC, Paddle Serving's PipelineClient, and a load test.

The package needs nothing of the server's code.
"""
