"""A read-only web page over one data folder: `flowctl ui`.

The page shows the same facts as the commands, and calls the same functions. Requests run in threads and share one open
data folder. HTML is rendered on the server, with every text escaped.
"""
