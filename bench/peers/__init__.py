"""The demo model served by other serving software, and asked in turns with ours."""
