"""Clients of the service over HTTP and gRPC, the original PipelineClient, and a load test; stands alone."""
