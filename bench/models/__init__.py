"""Models of many frameworks, tried from their own files to the answers of every endpoint."""
