"""What `auto` in config.yml stands for: the fastest way to run a model here, measured and not guessed."""
