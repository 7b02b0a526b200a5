"""The rows of a collection at a time, and their changes from a time on.

| question | module |
|---|---|
| which segments and timestamps a read has; published documents as they are stored | `reads` |
| documents at a time, reduced per key, in this process; `derive.spark.executor` on Spark | `reduced` |
| rows with SQL columns at a time, also in shares that several processes read, as Spark's workers do | `rows` |
| documents or rows from a time on, as they become final | `reads`, `table_updates` |
| rows and their changes, as the input of a dataflow | `inputs`, `reduced_input` |
"""
