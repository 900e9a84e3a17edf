"""The papers' figures; installed as beir_cocodr.published, where the report reads them."""
