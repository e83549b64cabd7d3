"""What the gRPC listener takes of grpcio that grpcio keeps to itself; README.md says why, part by part."""
