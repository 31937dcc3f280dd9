"""Annotation formats: one file each, and the one factory that names them all."""
