"""Upgrades of a model that are gated by its answers: the new version must answer live requests as the old."""
