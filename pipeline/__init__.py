"""Paddlewheel: a DAG of models behind key/value JSON and gRPC. Importing it imports no framework."""
