"""The messages of the gRPC services, generated from the .proto files beside this one."""
