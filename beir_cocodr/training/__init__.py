"""Pre-training, fine-tuning, and adaptation of one base to one corpus."""
