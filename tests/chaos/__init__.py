"""Faults on purpose: the default service under load, every answer compared with the one it must be."""
