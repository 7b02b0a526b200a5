"""JSON documents as values: pointers, order, packed keys, clocks."""
