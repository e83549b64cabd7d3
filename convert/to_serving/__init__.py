"""`paddlewheel convert serving`: from a program to a serving model, and the notes that come along."""
