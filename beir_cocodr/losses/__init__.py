"""Training losses: pure tensor functions with a thin module around each."""
