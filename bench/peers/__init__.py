"""Our service in turns with other serving software, and with the limit that a loop without a server sets."""
