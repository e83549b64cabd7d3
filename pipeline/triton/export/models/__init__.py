"""The Python models of an exported repository. `standalone.py` writes what they import of ours into them."""
