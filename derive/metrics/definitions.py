"""The definitions of all metrics, in the order of their documentation.

Names follow the conventions of Prometheus: the unit is the last word, and times and sizes are in seconds and bytes.
Labels have few values: names of tasks, collections, views and instances. The dashboard and the documentation name these
metrics, and tests compare them with this module.
"""

from __future__ import annotations

from derive.instruments import Metric

INFO = Metric("flow_info", "gauge", "1; the labels describe the process.", ("command", "version"))

# Tasks, in `flowctl run`

TASK_LAG = Metric(
    "flow_task_lag_seconds", "gauge", "Distance of the task's upper from the present; up to 6 s when idle.", ("task",)
)
TASK_UPPER = Metric(
    "flow_task_upper_timestamp_seconds", "gauge", "Time before which all is derived or stored.", ("task",)
)
TASK_WAITING = Metric(
    "flow_task_waiting_documents",
    "gauge",
    "Estimated source documents that wait: due for the run, delayed for their readDelay or the end of their tick.",
    ("task", "reason"),
)
TASK_STOPPED = Metric("flow_task_stopped", "gauge", "1 while an error stops the task, otherwise 0.", ("task",))
TASK_SHARDS = Metric("flow_task_shards", "gauge", "Number of shards.", ("task",))
TASK_TRANSACTIONS = Metric(
    "flow_task_transactions_total", "counter", "Committed transactions that read documents.", ("task",)
)
TASK_DOCUMENTS_IN = Metric("flow_task_documents_in_total", "counter", "Source documents processed.", ("task",))
TASK_DOCUMENTS_OUT = Metric("flow_task_documents_out_total", "counter", "Documents published or stored.", ("task",))
TASK_BYTES_IN = Metric("flow_task_bytes_in_total", "counter", "Estimated bytes read, as stored.", ("task",))
TASK_BYTES_OUT = Metric("flow_task_bytes_out_total", "counter", "Bytes of the segments written.", ("task",))
TASK_PHASE = Metric(
    "flow_task_phase_seconds_total",
    "counter",
    "Time in each phase of transactions: plan, execute, commit.",
    ("task", "phase"),
)
TASK_TRANSACTION = Metric(
    "flow_task_transaction_seconds", "histogram", "Duration of transactions that read documents.", ("task",)
)
TASK_ERRORS = Metric(
    "flow_task_errors_total", "counter", "Errors that stopped the task; retried: true or false.", ("task", "retried")
)
COLLECTION_DOCUMENTS = Metric("flow_collection_documents", "gauge", "Stored updates of documents.", ("collection",))
COLLECTION_SEGMENTS = Metric("flow_collection_segments", "gauge", "Segments of the collection.", ("collection",))
COLLECTION_BYTES = Metric("flow_collection_bytes", "gauge", "Bytes of the segments.", ("collection",))
SPARK_UP = Metric("flow_spark_up", "gauge", "1 once the run has started Spark, otherwise 0.")

# `flowctl sql serve`

SQL_SESSIONS = Metric("flow_sql_sessions", "gauge", "Sessions of clients.", ("state",))
SQL_LOGINS = Metric("flow_sql_logins", "gauge", "Connections that have not logged in yet.")
SQL_CONNECTIONS = Metric("flow_sql_connections_total", "counter", "Connections accepted.")
SQL_STATEMENT = Metric(
    "flow_sql_statement_seconds", "histogram", "Duration of statements, from their execution to their last row."
)
SQL_ERRORS = Metric("flow_sql_errors_total", "counter", "Failed requests, by the class of the SQLSTATE.", ("class",))
SQL_COMMIT = Metric("flow_sql_commit_seconds", "histogram", "Time for which a transaction that writes waits to commit.")
VIEW_LAG = Metric(
    "flow_view_lag_seconds", "gauge", "Distance of a view or index from the present, at the best instance.", ("view",)
)
VIEW_UPPER = Metric("flow_view_upper_timestamp_seconds", "gauge", "Time before which the rows are known.", ("view",))
VIEW_FAILED = Metric("flow_view_failed", "gauge", "1 while no instance can maintain the view, otherwise 0.", ("view",))
VIEWS_STOPPED = Metric("flow_view_maintenance_stopped", "gauge", "1 while view maintenance is retried, otherwise 0.")
REPLICA_CONNECTED = Metric(
    "flow_replica_connected", "gauge", "1 while the replica is connected, otherwise 0.", ("replica",)
)
REPLICA_DATAFLOWS = Metric("flow_replica_dataflows", "gauge", "Views and indexes of the replica.", ("replica",))
REPLICA_MEMORY = Metric("flow_replica_memory_bytes", "gauge", "Resident memory of the replica.", ("replica",))

# `flowctl compute`

COMPUTE_CONNECTED = Metric("flow_compute_connected", "gauge", "1 while an SQL server is connected, otherwise 0.")
COMPUTE_SESSIONS = Metric("flow_compute_sessions_total", "counter", "Sessions of SQL servers.")
COMPUTE_DATAFLOWS = Metric("flow_compute_dataflows", "gauge", "Views and indexes that the instance maintains.")
COMPUTE_FAILED = Metric("flow_compute_failed_dataflows", "gauge", "Views and indexes that have failed.")
COMPUTE_LAG = Metric("flow_compute_lag_seconds", "gauge", "Distance of the slowest view or index from the present.")
COMPUTE_FAILURES = Metric("flow_compute_failures_total", "counter", "Failures of work that is retried.")

# Every process

PROCESS_MEMORY = Metric("process_resident_memory_bytes", "gauge", "Resident memory of the process.")
PROCESS_CPU = Metric("process_cpu_seconds_total", "counter", "Processor time of the process.")
PROCESS_START = Metric("process_start_time_seconds", "gauge", "Start of the process, in seconds since 1970.")
PROCESS_FILES = Metric("process_open_fds", "gauge", "Open file descriptors.")

METRICS = tuple(value for value in globals().values() if isinstance(value, Metric))
"""All metrics, in the order of their definition."""
