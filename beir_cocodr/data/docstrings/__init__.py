"""Documentation of installed packages, read from their source without running it."""
