"""Python models of exported repositories. `standalone.py` bundles them with the project code they import."""
