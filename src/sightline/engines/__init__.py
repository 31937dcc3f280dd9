"""Models at the speed of the hardware: one file an engine, one factory."""
