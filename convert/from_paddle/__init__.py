"""`python -m convert paddle`, of a Layer: from dynamic to static."""
