"""Where detections go, one kind a file."""
