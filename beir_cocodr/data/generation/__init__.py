"""What query generation is made of: generators, shards that survive a kill, cleaning, filter and output."""
