from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ComputeCommand(_message.Message):
    __slots__ = ("hello", "create_instance", "create_dataflows", "allow_compaction", "peek", "cancel_peeks", "initialization_complete")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    CREATE_INSTANCE_FIELD_NUMBER: _ClassVar[int]
    CREATE_DATAFLOWS_FIELD_NUMBER: _ClassVar[int]
    ALLOW_COMPACTION_FIELD_NUMBER: _ClassVar[int]
    PEEK_FIELD_NUMBER: _ClassVar[int]
    CANCEL_PEEKS_FIELD_NUMBER: _ClassVar[int]
    INITIALIZATION_COMPLETE_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    create_instance: CreateInstance
    create_dataflows: CreateDataflows
    allow_compaction: AllowCompaction
    peek: Peek
    cancel_peeks: CancelPeeks
    initialization_complete: InitializationComplete
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., create_instance: _Optional[_Union[CreateInstance, _Mapping]] = ..., create_dataflows: _Optional[_Union[CreateDataflows, _Mapping]] = ..., allow_compaction: _Optional[_Union[AllowCompaction, _Mapping]] = ..., peek: _Optional[_Union[Peek, _Mapping]] = ..., cancel_peeks: _Optional[_Union[CancelPeeks, _Mapping]] = ..., initialization_complete: _Optional[_Union[InitializationComplete, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("epoch", "session", "protocol", "folder")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    FOLDER_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    session: int
    protocol: str
    folder: str
    def __init__(self, epoch: _Optional[int] = ..., session: _Optional[int] = ..., protocol: _Optional[str] = ..., folder: _Optional[str] = ...) -> None: ...

class CreateInstance(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class CreateDataflows(_message.Message):
    __slots__ = ("dataflows",)
    DATAFLOWS_FIELD_NUMBER: _ClassVar[int]
    dataflows: _containers.RepeatedCompositeFieldContainer[Dataflow]
    def __init__(self, dataflows: _Optional[_Iterable[_Union[Dataflow, _Mapping]]] = ...) -> None: ...

class Dataflow(_message.Message):
    __slots__ = ("id", "plan", "imports", "index", "materialized", "tail", "as_of", "number", "name")
    ID_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    IMPORTS_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    MATERIALIZED_FIELD_NUMBER: _ClassVar[int]
    TAIL_FIELD_NUMBER: _ClassVar[int]
    AS_OF_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    id: int
    plan: bytes
    imports: _containers.RepeatedCompositeFieldContainer[Import]
    index: Index
    materialized: Materialized
    tail: Tail
    as_of: int
    number: int
    name: str
    def __init__(self, id: _Optional[int] = ..., plan: _Optional[bytes] = ..., imports: _Optional[_Iterable[_Union[Import, _Mapping]]] = ..., index: _Optional[_Union[Index, _Mapping]] = ..., materialized: _Optional[_Union[Materialized, _Mapping]] = ..., tail: _Optional[_Union[Tail, _Mapping]] = ..., as_of: _Optional[int] = ..., number: _Optional[int] = ..., name: _Optional[str] = ...) -> None: ...

class Import(_message.Message):
    __slots__ = ("id", "source", "name")
    ID_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    id: int
    source: bytes
    name: str
    def __init__(self, id: _Optional[int] = ..., source: _Optional[bytes] = ..., name: _Optional[str] = ...) -> None: ...

class Index(_message.Message):
    __slots__ = ("key",)
    KEY_FIELD_NUMBER: _ClassVar[int]
    key: bytes
    def __init__(self, key: _Optional[bytes] = ...) -> None: ...

class Materialized(_message.Message):
    __slots__ = ("definition",)
    DEFINITION_FIELD_NUMBER: _ClassVar[int]
    definition: int
    def __init__(self, definition: _Optional[int] = ...) -> None: ...

class Tail(_message.Message):
    __slots__ = ("has_snapshot", "of", "up_to")
    HAS_SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    OF_FIELD_NUMBER: _ClassVar[int]
    UP_TO_FIELD_NUMBER: _ClassVar[int]
    has_snapshot: bool
    of: int
    up_to: int
    def __init__(self, has_snapshot: _Optional[bool] = ..., of: _Optional[int] = ..., up_to: _Optional[int] = ...) -> None: ...

class AllowCompaction(_message.Message):
    __slots__ = ("compactions",)
    COMPACTIONS_FIELD_NUMBER: _ClassVar[int]
    compactions: _containers.RepeatedCompositeFieldContainer[Compaction]
    def __init__(self, compactions: _Optional[_Iterable[_Union[Compaction, _Mapping]]] = ...) -> None: ...

class Compaction(_message.Message):
    __slots__ = ("id", "frontier")
    ID_FIELD_NUMBER: _ClassVar[int]
    FRONTIER_FIELD_NUMBER: _ClassVar[int]
    id: int
    frontier: int
    def __init__(self, id: _Optional[int] = ..., frontier: _Optional[int] = ...) -> None: ...

class Peek(_message.Message):
    __slots__ = ("uuid", "query", "time", "arguments", "most_bytes")
    UUID_FIELD_NUMBER: _ClassVar[int]
    QUERY_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    MOST_BYTES_FIELD_NUMBER: _ClassVar[int]
    uuid: int
    query: bytes
    time: int
    arguments: bytes
    most_bytes: int
    def __init__(self, uuid: _Optional[int] = ..., query: _Optional[bytes] = ..., time: _Optional[int] = ..., arguments: _Optional[bytes] = ..., most_bytes: _Optional[int] = ...) -> None: ...

class CancelPeeks(_message.Message):
    __slots__ = ("uuids",)
    UUIDS_FIELD_NUMBER: _ClassVar[int]
    uuids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, uuids: _Optional[_Iterable[int]] = ...) -> None: ...

class InitializationComplete(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ComputeResponse(_message.Message):
    __slots__ = ("welcome", "frontier_uppers", "peek_response", "tail_response", "status", "report")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    FRONTIER_UPPERS_FIELD_NUMBER: _ClassVar[int]
    PEEK_RESPONSE_FIELD_NUMBER: _ClassVar[int]
    TAIL_RESPONSE_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    frontier_uppers: FrontierUppers
    peek_response: PeekResponse
    tail_response: TailResponse
    status: Status
    report: Report
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., frontier_uppers: _Optional[_Union[FrontierUppers, _Mapping]] = ..., peek_response: _Optional[_Union[PeekResponse, _Mapping]] = ..., tail_response: _Optional[_Union[TailResponse, _Mapping]] = ..., status: _Optional[_Union[Status, _Mapping]] = ..., report: _Optional[_Union[Report, _Mapping]] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("process", "epoch", "kept", "rebuilt", "dropped", "reasons", "names")
    class NamesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: str
        def __init__(self, key: _Optional[int] = ..., value: _Optional[str] = ...) -> None: ...
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    KEPT_FIELD_NUMBER: _ClassVar[int]
    REBUILT_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    REASONS_FIELD_NUMBER: _ClassVar[int]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    process: str
    epoch: int
    kept: _containers.RepeatedScalarFieldContainer[int]
    rebuilt: _containers.RepeatedScalarFieldContainer[int]
    dropped: _containers.RepeatedScalarFieldContainer[int]
    reasons: _containers.RepeatedScalarFieldContainer[str]
    names: _containers.ScalarMap[int, str]
    def __init__(self, process: _Optional[str] = ..., epoch: _Optional[int] = ..., kept: _Optional[_Iterable[int]] = ..., rebuilt: _Optional[_Iterable[int]] = ..., dropped: _Optional[_Iterable[int]] = ..., reasons: _Optional[_Iterable[str]] = ..., names: _Optional[_Mapping[int, str]] = ...) -> None: ...

class FrontierUppers(_message.Message):
    __slots__ = ("uppers",)
    UPPERS_FIELD_NUMBER: _ClassVar[int]
    uppers: _containers.RepeatedCompositeFieldContainer[Upper]
    def __init__(self, uppers: _Optional[_Iterable[_Union[Upper, _Mapping]]] = ...) -> None: ...

class Upper(_message.Message):
    __slots__ = ("id", "since", "upper", "number")
    ID_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    UPPER_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    id: int
    since: int
    upper: int
    number: int
    def __init__(self, id: _Optional[int] = ..., since: _Optional[int] = ..., upper: _Optional[int] = ..., number: _Optional[int] = ...) -> None: ...

class Failure(_message.Message):
    __slots__ = ("error_json",)
    ERROR_JSON_FIELD_NUMBER: _ClassVar[int]
    error_json: bytes
    def __init__(self, error_json: _Optional[bytes] = ...) -> None: ...

class PeekResponse(_message.Message):
    __slots__ = ("uuid", "rows", "failure", "is_last")
    UUID_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    IS_LAST_FIELD_NUMBER: _ClassVar[int]
    uuid: int
    rows: bytes
    failure: Failure
    is_last: bool
    def __init__(self, uuid: _Optional[int] = ..., rows: _Optional[bytes] = ..., failure: _Optional[_Union[Failure, _Mapping]] = ..., is_last: _Optional[bool] = ...) -> None: ...

class TailResponse(_message.Message):
    __slots__ = ("id", "lower", "upper", "updates", "failure")
    ID_FIELD_NUMBER: _ClassVar[int]
    LOWER_FIELD_NUMBER: _ClassVar[int]
    UPPER_FIELD_NUMBER: _ClassVar[int]
    UPDATES_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    id: int
    lower: int
    upper: int
    updates: bytes
    failure: Failure
    def __init__(self, id: _Optional[int] = ..., lower: _Optional[int] = ..., upper: _Optional[int] = ..., updates: _Optional[bytes] = ..., failure: _Optional[_Union[Failure, _Mapping]] = ...) -> None: ...

class Status(_message.Message):
    __slots__ = ("id", "failure", "number")
    ID_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    id: int
    failure: Failure
    number: int
    def __init__(self, id: _Optional[int] = ..., failure: _Optional[_Union[Failure, _Mapping]] = ..., number: _Optional[int] = ...) -> None: ...

class Report(_message.Message):
    __slots__ = ("memory_bytes", "hydrations")
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    HYDRATIONS_FIELD_NUMBER: _ClassVar[int]
    memory_bytes: int
    hydrations: _containers.RepeatedCompositeFieldContainer[Hydration]
    def __init__(self, memory_bytes: _Optional[int] = ..., hydrations: _Optional[_Iterable[_Union[Hydration, _Mapping]]] = ...) -> None: ...

class Hydration(_message.Message):
    __slots__ = ("id", "stage", "rows", "since", "running")
    ID_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    id: int
    stage: str
    rows: int
    since: int
    running: int
    def __init__(self, id: _Optional[int] = ..., stage: _Optional[str] = ..., rows: _Optional[int] = ..., since: _Optional[int] = ..., running: _Optional[int] = ...) -> None: ...
