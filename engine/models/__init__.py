"""Model architectures and the loading of their weights."""
