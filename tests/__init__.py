"""Tests, in folders named as what they test; support/ has what they share."""
