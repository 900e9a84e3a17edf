"""One self-contained page about the output of a command."""
