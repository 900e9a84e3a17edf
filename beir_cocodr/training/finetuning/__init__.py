"""Fine-tuning on labelled queries: pairs, losses, weightings of clusters, and rounds."""
