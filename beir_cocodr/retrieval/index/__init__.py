"""What an approximate index by FAISS is made of: kinds, layout, folding, files and recall."""
