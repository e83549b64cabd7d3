"""Models of many frameworks, each from its own files to answers over every endpoint."""
