"""Pictures of a data flow: each module turns a `FlowGraph` into text of one format, without other programs.

Names and values in a catalog are untrusted: each format escapes all of them, in one function of its own.
"""
