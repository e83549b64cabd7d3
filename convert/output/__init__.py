"""The folder of a result: put there whole, stamped with what it was made of."""
