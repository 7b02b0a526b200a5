"""Pictures of a data flow: each module turns a `FlowGraph` into text of one format, and needs nothing else to do it.

Names and values in a catalog are anyone's: each format escapes all of them, in one function of its own.
"""
