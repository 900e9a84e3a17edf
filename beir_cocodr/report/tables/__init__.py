"""Results as tables in a terminal."""
