"""A language model as a judge: its prompt, its grades, and what they are worth beside labels."""
