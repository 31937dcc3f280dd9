"""Training: a plain loop, checkpoints that are complete or absent, and what spreads it over workers."""
