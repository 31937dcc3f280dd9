"""Ray clusters to work on."""
