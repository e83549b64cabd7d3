"""Applications of the peers, written as in their documentation. Each peer's own interpreter runs its own."""
