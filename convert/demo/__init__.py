"""The demo: its headlines, vocabulary and model, the training, and its conversion."""
