"""`paddlewheel convert paddle`, of a Layer: from dynamic to static."""
