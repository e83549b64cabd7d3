"""An application for each peer, as that peer's documentation writes it; run by the peer's own interpreter."""
