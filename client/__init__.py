"""Clients of the service: over HTTP, over gRPC, the original PipelineClient, and a load test. Stands alone."""
