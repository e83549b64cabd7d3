"""Parts of the gRPC listener that use private names of grpcio. README.md gives the reason for each part."""
