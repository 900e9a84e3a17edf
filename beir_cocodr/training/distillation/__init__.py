"""Distillation: teachers, their scores of candidate lists, and the training on them."""
