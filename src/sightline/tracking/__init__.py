"""Every run in MLflow: what it was, where it ran, how it went; the only place that knows MLflow."""
