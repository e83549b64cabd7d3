"""FRONT PROCESS: KServe v1, the plain-JSON door."""
