"""Hides a private name of grpcio from fronts that start with this folder in PYTHONPATH.

They serve gRPC with public grpc.aio alone, as they would after an upgrade of grpcio.
"""

import sys

if "pipeline.front" in " ".join(sys.orig_argv):
    from grpc._cython import cygrpc

    del cygrpc._ServicerContext
