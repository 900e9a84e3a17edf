"""The model of differences without labels: its fit to labelled pairs, and how often it holds."""
