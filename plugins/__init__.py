"""One file per host; nothing is registered by importing."""
