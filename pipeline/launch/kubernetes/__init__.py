"""`paddlewheel export kubernetes`: writes the objects with which Kubernetes and KServe run a service."""
