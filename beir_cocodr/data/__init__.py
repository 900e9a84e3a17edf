"""Collections: BEIR folders, ir_datasets ids, corpus files and the embedded default."""
