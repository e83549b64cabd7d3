"""KServe v2 with Triton's extensions, over HTTP and gRPC: the service and its model Ops as v2 models."""
