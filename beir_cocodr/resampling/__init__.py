"""Interpolation and extrapolation: training and test queries resampled by their similarity."""
