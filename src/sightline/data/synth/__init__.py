"""Procedural images with exact boxes, so that tests, demos and benchmarks need no download."""
