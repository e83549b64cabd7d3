"""`engine: auto`, `precision: auto`, `batch_size: auto`: what is the fastest here is measured, not guessed."""
