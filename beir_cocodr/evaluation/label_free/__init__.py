"""Which of two models is better on a collection without labels, and how far to trust the answer."""
