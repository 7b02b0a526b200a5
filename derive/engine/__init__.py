"""The engine: says which task runs when, what its transactions read, and what commits together."""
