"""Annotated images: reading every format, one stored form, and reading it back for training."""
