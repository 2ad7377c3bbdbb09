from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class AppendRequest(_message.Message):
    __slots__ = ("hello", "item")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    ITEM_FIELD_NUMBER: _ClassVar[int]
    hello: AppendHello
    item: AppendItem
    def __init__(self, hello: _Optional[_Union[AppendHello, _Mapping]] = ..., item: _Optional[_Union[AppendItem, _Mapping]] = ...) -> None: ...

class AppendHello(_message.Message):
    __slots__ = ("protocol_version", "actor_id", "run_id", "table")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    ACTOR_ID_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    actor_id: str
    run_id: str
    table: str
    def __init__(self, protocol_version: _Optional[int] = ..., actor_id: _Optional[str] = ..., run_id: _Optional[str] = ..., table: _Optional[str] = ...) -> None: ...

class AppendItem(_message.Message):
    __slots__ = ("sequence", "timeout_ms", "trajectory")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    TRAJECTORY_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    timeout_ms: int
    trajectory: bytes
    def __init__(self, sequence: _Optional[int] = ..., timeout_ms: _Optional[int] = ..., trajectory: _Optional[bytes] = ...) -> None: ...

class AppendResponse(_message.Message):
    __slots__ = ("sequence", "outcome", "reason")
    class Outcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        OUTCOME_UNSPECIFIED: _ClassVar[AppendResponse.Outcome]
        OUTCOME_STORED: _ClassVar[AppendResponse.Outcome]
        OUTCOME_DUPLICATE: _ClassVar[AppendResponse.Outcome]
        OUTCOME_TIMED_OUT: _ClassVar[AppendResponse.Outcome]
        OUTCOME_REJECTED: _ClassVar[AppendResponse.Outcome]
    OUTCOME_UNSPECIFIED: AppendResponse.Outcome
    OUTCOME_STORED: AppendResponse.Outcome
    OUTCOME_DUPLICATE: AppendResponse.Outcome
    OUTCOME_TIMED_OUT: AppendResponse.Outcome
    OUTCOME_REJECTED: AppendResponse.Outcome
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    outcome: AppendResponse.Outcome
    reason: str
    def __init__(self, sequence: _Optional[int] = ..., outcome: _Optional[_Union[AppendResponse.Outcome, str]] = ..., reason: _Optional[str] = ...) -> None: ...

class SampleRequest(_message.Message):
    __slots__ = ("table", "num_items", "timeout_ms")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    NUM_ITEMS_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    table: str
    num_items: int
    timeout_ms: int
    def __init__(self, table: _Optional[str] = ..., num_items: _Optional[int] = ..., timeout_ms: _Optional[int] = ...) -> None: ...

class SampleResponse(_message.Message):
    __slots__ = ("items", "num_items", "num_bytes", "priority_mass")
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    NUM_ITEMS_FIELD_NUMBER: _ClassVar[int]
    NUM_BYTES_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_MASS_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedCompositeFieldContainer[Item]
    num_items: int
    num_bytes: int
    priority_mass: float
    def __init__(self, items: _Optional[_Iterable[_Union[Item, _Mapping]]] = ..., num_items: _Optional[int] = ..., num_bytes: _Optional[int] = ..., priority_mass: _Optional[float] = ...) -> None: ...

class Item(_message.Message):
    __slots__ = ("key", "actor_id", "run_id", "sequence", "trajectory")
    KEY_FIELD_NUMBER: _ClassVar[int]
    ACTOR_ID_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    TRAJECTORY_FIELD_NUMBER: _ClassVar[int]
    key: int
    actor_id: str
    run_id: str
    sequence: int
    trajectory: bytes
    def __init__(self, key: _Optional[int] = ..., actor_id: _Optional[str] = ..., run_id: _Optional[str] = ..., sequence: _Optional[int] = ..., trajectory: _Optional[bytes] = ...) -> None: ...

class UpdatePrioritiesRequest(_message.Message):
    __slots__ = ("table", "keys", "priorities")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    PRIORITIES_FIELD_NUMBER: _ClassVar[int]
    table: str
    keys: _containers.RepeatedScalarFieldContainer[int]
    priorities: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, table: _Optional[str] = ..., keys: _Optional[_Iterable[int]] = ..., priorities: _Optional[_Iterable[float]] = ...) -> None: ...

class UpdatePrioritiesResponse(_message.Message):
    __slots__ = ("num_updated", "num_gone")
    NUM_UPDATED_FIELD_NUMBER: _ClassVar[int]
    NUM_GONE_FIELD_NUMBER: _ClassVar[int]
    num_updated: int
    num_gone: int
    def __init__(self, num_updated: _Optional[int] = ..., num_gone: _Optional[int] = ...) -> None: ...

class StatsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StatsResponse(_message.Message):
    __slots__ = ("tables",)
    TABLES_FIELD_NUMBER: _ClassVar[int]
    tables: _containers.RepeatedCompositeFieldContainer[TableStats]
    def __init__(self, tables: _Optional[_Iterable[_Union[TableStats, _Mapping]]] = ...) -> None: ...

class TableStats(_message.Message):
    __slots__ = ("table", "kind", "num_items", "num_bytes", "max_items", "max_bytes", "num_inserted", "num_sampled_out", "num_evicted", "num_rejected", "num_duplicates", "num_insert_timeouts", "insert_wait_s", "sample_wait_s")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    NUM_ITEMS_FIELD_NUMBER: _ClassVar[int]
    NUM_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_ITEMS_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    NUM_INSERTED_FIELD_NUMBER: _ClassVar[int]
    NUM_SAMPLED_OUT_FIELD_NUMBER: _ClassVar[int]
    NUM_EVICTED_FIELD_NUMBER: _ClassVar[int]
    NUM_REJECTED_FIELD_NUMBER: _ClassVar[int]
    NUM_DUPLICATES_FIELD_NUMBER: _ClassVar[int]
    NUM_INSERT_TIMEOUTS_FIELD_NUMBER: _ClassVar[int]
    INSERT_WAIT_S_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_WAIT_S_FIELD_NUMBER: _ClassVar[int]
    table: str
    kind: str
    num_items: int
    num_bytes: int
    max_items: int
    max_bytes: int
    num_inserted: int
    num_sampled_out: int
    num_evicted: int
    num_rejected: int
    num_duplicates: int
    num_insert_timeouts: int
    insert_wait_s: float
    sample_wait_s: float
    def __init__(self, table: _Optional[str] = ..., kind: _Optional[str] = ..., num_items: _Optional[int] = ..., num_bytes: _Optional[int] = ..., max_items: _Optional[int] = ..., max_bytes: _Optional[int] = ..., num_inserted: _Optional[int] = ..., num_sampled_out: _Optional[int] = ..., num_evicted: _Optional[int] = ..., num_rejected: _Optional[int] = ..., num_duplicates: _Optional[int] = ..., num_insert_timeouts: _Optional[int] = ..., insert_wait_s: _Optional[float] = ..., sample_wait_s: _Optional[float] = ...) -> None: ...
