"""Heads of pre-training: Condenser's and CoT-MAE's."""
