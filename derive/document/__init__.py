"""JSON documents: pointers, order, packed keys and timestamps."""
