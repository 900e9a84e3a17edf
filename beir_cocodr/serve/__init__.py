"""A local page on which a person searches with several models and judges what they find."""
