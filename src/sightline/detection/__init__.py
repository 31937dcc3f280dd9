"""Detection over many images: sources, plan, workers, targets."""
