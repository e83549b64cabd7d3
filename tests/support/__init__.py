"""What tests share: small models, services, containers, recordings, commands."""
