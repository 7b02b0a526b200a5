"""Tables of the metadata in SQLite, and the statements that upgrade older formats.

A segment file is part of a collection if and only if a row of the table `segment` says so.
"""

from __future__ import annotations

from derive.storage.metadata.transaction import SMALL_BYTES, SMALL_DOCUMENTS, Dialect

SQLITE = Dialect(
    is_small=f"(documents < {SMALL_DOCUMENTS} AND bytes < {SMALL_BYTES})",
    span_digits="length(printf('%x', clock_max - clock_min))",
    contains="instr(doc, ?) > 0",
)

FORMAT = 13
"""Version of the tables below, and of segment files."""

MOVED_TEXT = "the metadata were moved by 'flowctl metadata copy' to"
"""Begin of the error of a write to a database whose metadata are at another place now."""

TABLES = """
CREATE TABLE format (version INTEGER NOT NULL);
CREATE TABLE folder (
    id TEXT NOT NULL,                   -- identifier of the data folder, as in the file `folder-id`; empty for none
    commits INTEGER NOT NULL            -- number of synced commits, as in the file `commits`
);
INSERT INTO folder VALUES ('', 0);
CREATE TABLE timeline (
    id INTEGER PRIMARY KEY CHECK (id = 0),
    clock INTEGER NOT NULL,             -- last timestamp that was assigned, or below which contents were read
    time INTEGER NOT NULL DEFAULT 0,    -- wall-clock time at the last reading
    watch TEXT NOT NULL DEFAULT '',     -- identifier of the monotonic clock at that reading
    elapsed INTEGER NOT NULL DEFAULT 0  -- value of the monotonic clock at that reading, microseconds
);
INSERT INTO timeline (id, clock) VALUES (0, 0);
CREATE TABLE identifier (last INTEGER NOT NULL);    -- last number of a collection or relation; never reused
INSERT INTO identifier VALUES (0);
CREATE TABLE collection (
    name TEXT PRIMARY KEY,
    key TEXT NOT NULL,                  -- JSON array of pointers
    partitions TEXT NOT NULL,           -- JSON array of [field, pointer]
    since INTEGER NOT NULL,
    upper INTEGER NOT NULL,
    id INTEGER NOT NULL DEFAULT 0,      -- permanent identifier of the collection
    columns TEXT,                       -- JSON array of [name, type, may be null]; NULL unless a table
    maintained INTEGER NOT NULL DEFAULT 0,  -- n: only dataflows of the n-th definition write; -n: the rows are earlier
    relation INTEGER NOT NULL DEFAULT 0,    -- identifier of the history; a reset begins a new one
    named INTEGER NOT NULL DEFAULT 0    -- time of the binding of name and history; 0 if unknown
) WITHOUT ROWID;
CREATE UNIQUE INDEX collection_by_id ON collection (id);
CREATE UNIQUE INDEX collection_by_relation ON collection (relation);
CREATE TABLE segment (
    id INTEGER PRIMARY KEY,
    collection TEXT NOT NULL REFERENCES collection,
    path TEXT NOT NULL UNIQUE,          -- relative to the data folder
    partition TEXT NOT NULL,            -- JSON array of the logical partition's values, in field order
    clock_min INTEGER NOT NULL,
    clock_max INTEGER NOT NULL,
    documents INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    checksum TEXT NOT NULL DEFAULT ''   -- SHA-256 of the file; empty for a segment of format 9
);
CREATE INDEX segment_by_clock ON segment (collection, clock_max);
CREATE TABLE replaced (
    path TEXT PRIMARY KEY,              -- path of a replaced segment, relative to the data folder
    collection TEXT NOT NULL REFERENCES collection,
    at INTEGER NOT NULL                 -- time of the replacement, microseconds since the Unix epoch
) WITHOUT ROWID;
CREATE TABLE discarded (
    path TEXT PRIMARY KEY,              -- path of a segment from before a reset, relative to the data folder
    collection TEXT NOT NULL REFERENCES collection
) WITHOUT ROWID;
CREATE TABLE writer (                   -- writers of files that no row names yet
    id TEXT PRIMARY KEY,                -- prefix of the names of these files
    collection TEXT NOT NULL REFERENCES collection,
    at INTEGER NOT NULL                 -- time of the record, microseconds since the Unix epoch
) WITHOUT ROWID;
CREATE TABLE abandoned (
    id TEXT PRIMARY KEY,                -- identifier of a write capability whose holder did not drop it
    collection TEXT NOT NULL REFERENCES collection
) WITHOUT ROWID;
CREATE TABLE appended (                 -- updates of tables that are in no segment yet
    collection INTEGER NOT NULL,        -- id of the collection
    clock INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    diff INTEGER NOT NULL,
    key BLOB NOT NULL,
    doc TEXT NOT NULL,
    PRIMARY KEY (collection, clock, seq)
) WITHOUT ROWID;
CREATE TABLE failure (                  -- errors of materialized views
    collection INTEGER NOT NULL,        -- id of the collection
    since INTEGER NOT NULL,             -- first timestamp of the error
    sqlstate TEXT NOT NULL,
    message TEXT NOT NULL,
    until INTEGER NOT NULL,             -- timestamp of the retraction; the end of time while the error exists
    PRIMARY KEY (collection, since, sqlstate, message)
) WITHOUT ROWID;
CREATE TABLE task (
    name TEXT PRIMARY KEY,
    shards INTEGER NOT NULL,            -- fixed when the task first runs; 0 after a reset
    positions TEXT NOT NULL,            -- JSON: position (adjusted timestamp) by transform
    error TEXT,                         -- JSON of the FlowError that stopped the task
    documents_in INTEGER NOT NULL DEFAULT 0,
    documents_out INTEGER NOT NULL DEFAULT 0,
    transactions INTEGER NOT NULL DEFAULT 0,
    places TEXT NOT NULL DEFAULT '{}',  -- JSON: source and offset of the position by transform
    fingerprints TEXT NOT NULL DEFAULT '{}',    -- JSON: fingerprint at the last run by part
    edits TEXT NOT NULL DEFAULT '[]',   -- JSON array of [part, message, hint, at]
    epoch INTEGER NOT NULL DEFAULT 0,   -- number of run capabilities so far
    home TEXT NOT NULL DEFAULT ''       -- task whose folder has the state, after a swap; empty for its own folder
) WITHOUT ROWID;
CREATE TABLE shard (
    task TEXT NOT NULL REFERENCES task,
    number INTEGER NOT NULL,
    token TEXT NOT NULL,                -- name of the last committed attempt of the shard
    PRIMARY KEY (task, number)
) WITHOUT ROWID;
CREATE TABLE capability (
    id TEXT PRIMARY KEY,
    kind TEXT NOT NULL CHECK (kind IN ('read', 'write', 'run')),
    collection TEXT REFERENCES collection,  -- NULL for a run capability
    task TEXT,                          -- the task, `view:ID` or `index:ID`; NULL if a process has it
    transform TEXT,                     -- state key of the transform that reads
    frontier INTEGER,                   -- bound of `since` or `upper`; NULL for a run capability
    expires INTEGER,    -- microseconds since the Unix epoch; NULL if it does not expire
    at INTEGER,                         -- files replaced earlier are unused; NULL if no file is being read
    holder TEXT NOT NULL,               -- process name in the format of derive/storage/metadata/process.py
    purpose TEXT                        -- description of the use, for people
) WITHOUT ROWID;
"""

PAST = """
CREATE TABLE IF NOT EXISTS definition (
    digest TEXT PRIMARY KEY,
    spec TEXT NOT NULL                  -- JSON of derive/protocol/definition_text.py
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS history (  -- parts of the past of derivations, as in `PastPart`
    task TEXT NOT NULL REFERENCES task,
    number INTEGER NOT NULL,
    definition TEXT NOT NULL REFERENCES definition,
    is_regular INTEGER NOT NULL,
    clamp INTEGER NOT NULL,             -- `upper` of the output before the part
    upper INTEGER,                      -- `upper` after the part; NULL for the last part
    begins TEXT NOT NULL,               -- JSON: position (adjusted timestamp) before the part by transform
    ends TEXT,                          -- JSON: positions after the part; NULL for the last part
    PRIMARY KEY (task, number)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS applied (  -- definitions of materializations at their last commits
    task TEXT PRIMARY KEY REFERENCES task,
    definition TEXT NOT NULL REFERENCES definition
) WITHOUT ROWID;
"""

INGESTIONS = """
CREATE TABLE IF NOT EXISTS ingestion (  -- ingestions into collections, as in `Load`
    number INTEGER PRIMARY KEY,
    relation INTEGER NOT NULL,          -- relation of the collection
    load_id TEXT,                       -- NULL without --load-id
    at INTEGER NOT NULL,                -- time of the commit, microseconds since the Unix epoch
    name TEXT NOT NULL,                 -- name of the file
    digest TEXT NOT NULL,               -- SHA-256 of the content; empty if unknown
    documents INTEGER NOT NULL,
    bytes INTEGER NOT NULL,             -- size of the segments
    writer TEXT NOT NULL,               -- write capability, whose identifier is in the names of the segments
    clock_min INTEGER,                  -- first timestamp; NULL without documents
    undone INTEGER                      -- time at which the load was undone; NULL if it was not
);
CREATE UNIQUE INDEX IF NOT EXISTS ingestion_by_load ON ingestion (relation, load_id) WHERE undone IS NULL;
CREATE INDEX IF NOT EXISTS ingestion_by_digest ON ingestion (relation, digest);
"""

FOLLOWED = """
CREATE TABLE IF NOT EXISTS followed (   -- files that `flowctl ingest --follow` reads, as in `FilePosition`
    relation INTEGER NOT NULL,          -- relation of the collection
    path TEXT NOT NULL,
    device INTEGER NOT NULL,
    inode INTEGER NOT NULL,
    offset INTEGER NOT NULL,            -- first unread byte
    lines INTEGER NOT NULL,             -- lines before the offset
    checksum INTEGER NOT NULL,          -- of the first and last bytes before the offset
    documents INTEGER NOT NULL,
    at INTEGER NOT NULL,                -- time of the last commit, microseconds since the Unix epoch
    PRIMARY KEY (relation, device, inode)
) WITHOUT ROWID;
"""

VERSIONS = """
CREATE TABLE IF NOT EXISTS version (  -- versions of collections, as in `Version`
    collection TEXT NOT NULL REFERENCES collection,
    number INTEGER NOT NULL,
    begins INTEGER NOT NULL,            -- first timestamp of its contents
    definition TEXT,                    -- JSON of the collection's definition; NULL if the catalog defines it
    PRIMARY KEY (collection, number)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS shadow (  -- members of the group of derivations that a shadow is to replace
    task TEXT PRIMARY KEY,              -- name of the derivation
    number INTEGER NOT NULL,            -- number of the version that the shadow derives
    definition TEXT NOT NULL,           -- digest of the definition that the shadow runs
    is_held INTEGER NOT NULL            -- 1: the swap waits for `flowctl swap`
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS shadow_binding (  -- as in `BindingShadow`
    task TEXT PRIMARY KEY,              -- name of the materialization
    keys TEXT NOT NULL,                 -- JSON object: state key of each shadow's live binding, by that of the shadow
    live TEXT NOT NULL,                 -- JSON of the definition that the live bindings have
    definition TEXT NOT NULL,           -- digest of the definition with the shadows
    is_held INTEGER NOT NULL,           -- 1: the swap waits for `flowctl swap`
    error TEXT                          -- JSON of the error that stopped the shadows; NULL without one
) WITHOUT ROWID;
"""

HOME = """
ALTER TABLE task ADD COLUMN home TEXT NOT NULL DEFAULT '';  -- task whose folder has the state; empty for its own
"""

QUARANTINE = """
CREATE TABLE IF NOT EXISTS decision (  -- decided entries of quarantines
    relation INTEGER NOT NULL,          -- relation of the quarantine
    id TEXT NOT NULL,                   -- identifier of the entry
    input TEXT NOT NULL,                -- state key of the input
    kind TEXT NOT NULL CHECK (kind IN ('retry', 'drop')),
    at INTEGER NOT NULL,                -- time of the decision, microseconds since the Unix epoch
    PRIMARY KEY (relation, id)
) WITHOUT ROWID;
"""

CHAINS = """
CREATE TABLE IF NOT EXISTS chain (      -- links of the states of shards that travel, as in `Link`
    task TEXT NOT NULL REFERENCES task,
    shard INTEGER NOT NULL,
    position INTEGER NOT NULL,
    path TEXT NOT NULL,
    start INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    digest TEXT NOT NULL,
    is_snapshot INTEGER NOT NULL,
    PRIMARY KEY (task, shard, position)
) WITHOUT ROWID;
"""

COUNTERS = """
CREATE TABLE IF NOT EXISTS counter (    -- counters of identity columns of SQL
    id INTEGER PRIMARY KEY,
    next INTEGER NOT NULL               -- number after the last reserved one
);
"""

LOCATION = """
CREATE TABLE IF NOT EXISTS location (   -- where the segments are; no row if they are in the data folder
    url TEXT NOT NULL
);
"""

WORK = """
CREATE TABLE IF NOT EXISTS work (       -- work of lambdas, as in `Work`
    task TEXT NOT NULL REFERENCES task,
    transform TEXT NOT NULL,            -- state key of the transform
    documents INTEGER NOT NULL,
    published INTEGER NOT NULL,
    micros INTEGER NOT NULL,
    PRIMARY KEY (task, transform)
) WITHOUT ROWID;
"""

MATERIALIZATIONS = """
CREATE TABLE IF NOT EXISTS materialization (    -- as in `MaterializationRecord`
    task TEXT PRIMARY KEY,
    restart TEXT NOT NULL,              -- JSON of the last reset; empty without one
    refills TEXT NOT NULL               -- JSON: timestamp up to which a refilled binding must be stored, by state key
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS shard_data ( -- data of shards of materializations, as in `ShardData`
    task TEXT NOT NULL,
    number INTEGER NOT NULL,
    flow TEXT NOT NULL,                 -- checkpoint of an endpoint that stores none; empty for other endpoints
    driver TEXT NOT NULL,               -- JSON of the connector's state; empty without one
    PRIMARY KEY (task, number)
) WITHOUT ROWID;
"""

SQL_CATALOG = """
CREATE TABLE item (                     -- items of SQL: tables, sources, views and indexes
    id INTEGER PRIMARY KEY,             -- that of the table, for an item with rows
    kind TEXT NOT NULL,
    schema TEXT NOT NULL,
    name TEXT NOT NULL,
    description TEXT NOT NULL,          -- JSON of derive/sql/catalog/items.py
    UNIQUE (schema, name)
);
CREATE TABLE sql_catalog (version INTEGER NOT NULL);    -- number of changes of the items
INSERT INTO sql_catalog VALUES (0);
CREATE TABLE replica (                  -- replicas that SQL has created
    name TEXT PRIMARY KEY,
    address TEXT NOT NULL               -- host:port; empty for a process that the server starts
) WITHOUT ROWID;
"""

_IDENTITY = """
CREATE TABLE folder (
    id TEXT NOT NULL,                   -- identifier of the data folder, as in the file `folder-id`; empty for none
    commits INTEGER NOT NULL            -- number of synced commits, as in the file `commits`
);
INSERT INTO folder VALUES ('', 0);
CREATE TABLE writer (                   -- writers of files that no row names yet
    id TEXT PRIMARY KEY,                -- prefix of the names of these files
    collection TEXT NOT NULL REFERENCES collection,
    at INTEGER NOT NULL                 -- time of the record, microseconds since the Unix epoch
) WITHOUT ROWID;
CREATE TABLE discarded (
    path TEXT PRIMARY KEY,              -- path of a segment from before a reset, relative to the data folder
    collection TEXT NOT NULL REFERENCES collection
) WITHOUT ROWID;
ALTER TABLE segment ADD COLUMN checksum TEXT NOT NULL DEFAULT '';   -- SHA-256 of the file; empty for older segments
"""

_RELATIONS = """
ALTER TABLE collection ADD COLUMN relation INTEGER NOT NULL DEFAULT 0;  -- identifier of the history
UPDATE collection SET relation = id;
ALTER TABLE collection ADD COLUMN named INTEGER NOT NULL DEFAULT 0; -- time of the binding; 0 if unknown
CREATE UNIQUE INDEX collection_by_relation ON collection (relation);
"""

SIZES = """
CREATE TABLE size (                     -- sums over the segments of each collection that has segments; kept by triggers
    collection TEXT PRIMARY KEY,
    segments INTEGER NOT NULL,
    documents INTEGER NOT NULL,
    bytes INTEGER NOT NULL
) WITHOUT ROWID;
INSERT INTO size SELECT collection, count(*), sum(documents), sum(bytes) FROM segment GROUP BY collection;
CREATE TRIGGER segment_added AFTER INSERT ON segment BEGIN
    INSERT INTO size VALUES (new.collection, 1, new.documents, new.bytes) ON CONFLICT (collection) DO UPDATE
    SET segments = segments + 1, documents = documents + excluded.documents, bytes = bytes + excluded.bytes;
END;
CREATE TRIGGER segment_deleted AFTER DELETE ON segment BEGIN
    UPDATE size SET segments = segments - 1, documents = documents - old.documents, bytes = bytes - old.bytes
    WHERE collection = old.collection;
    DELETE FROM size WHERE collection = old.collection AND segments = 0;
END;
CREATE TRIGGER segment_moved AFTER UPDATE OF collection ON segment BEGIN
    UPDATE size SET segments = segments - 1, documents = documents - old.documents, bytes = bytes - old.bytes
    WHERE collection = old.collection;
    DELETE FROM size WHERE collection = old.collection AND segments = 0;
    INSERT INTO size VALUES (new.collection, 1, new.documents, new.bytes) ON CONFLICT (collection) DO UPDATE
    SET segments = segments + 1, documents = documents + excluded.documents, bytes = bytes + excluded.bytes;
END;
"""
"""Sums over segments. Triggers keep them, because older releases of this format also write segments."""

_INDEXES = f"""
CREATE INDEX IF NOT EXISTS segment_by_span ON segment (collection, {SQLITE.span_digits}, clock_min);
CREATE INDEX IF NOT EXISTS segment_by_size ON segment (collection, {SQLITE.is_small}, partition, clock_min);
"""

SUBSTITUTES = {
    "size": """
CREATE TEMP VIEW size AS
    SELECT collection, count(*) AS segments, sum(documents) AS documents, sum(bytes) AS bytes
    FROM segment GROUP BY collection;
""",
    "chain": "CREATE TEMP TABLE chain (task, shard, position, path, start, bytes, digest, is_snapshot)",
    "location": "CREATE TEMP TABLE location (url)",
    "shadow_binding": "CREATE TEMP TABLE shadow_binding (task, keys, live, definition, is_held, error)",
    "work": "CREATE TEMP TABLE work (task, transform, documents, published, micros)",
}
"""Substitutes for tables that a database lacks if an older release of this format wrote it, and it only can be read."""

LATEST = (
    PAST
    + INGESTIONS
    + FOLLOWED
    + VERSIONS
    + QUARANTINE
    + CHAINS
    + COUNTERS
    + LOCATION
    + WORK
    + MATERIALIZATIONS
    + _INDEXES
)
"""Tables of formats 12 and 13 that the first databases of format 12 lack; they also lack the column of `HOME`, and
`SIZES`."""

UPGRADES = {9: _IDENTITY, 10: _RELATIONS + SQL_CATALOG, 11: LATEST, 12: LATEST}
"""Statements that upgrade a database to the next format, by its present format."""
