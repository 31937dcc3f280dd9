"""The `sightline` command. It parses, calls the API and prints; it has no logic of its own."""
