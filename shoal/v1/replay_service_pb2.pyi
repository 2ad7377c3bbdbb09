from shoal.v1 import spec_pb2 as _spec_pb2
from shoal.v1 import tensor_pb2 as _tensor_pb2
from shoal.v1 import trajectory_pb2 as _trajectory_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class AppendRequest(_message.Message):
    __slots__ = ("hello", "items")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    hello: AppendHello
    items: AppendItems
    def __init__(self, hello: _Optional[_Union[AppendHello, _Mapping]] = ..., items: _Optional[_Union[AppendItems, _Mapping]] = ...) -> None: ...

class AppendHello(_message.Message):
    __slots__ = ("protocol_version", "actor_id", "run_id", "table", "declared")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    ACTOR_ID_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    DECLARED_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    actor_id: str
    run_id: str
    table: str
    declared: _containers.RepeatedCompositeFieldContainer[_spec_pb2.ArraySpec]
    def __init__(self, protocol_version: _Optional[int] = ..., actor_id: _Optional[str] = ..., run_id: _Optional[str] = ..., table: _Optional[str] = ..., declared: _Optional[_Iterable[_Union[_spec_pb2.ArraySpec, _Mapping]]] = ...) -> None: ...

class AppendItems(_message.Message):
    __slots__ = ("sequence", "timeout_ms", "trajectories", "priorities")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    TRAJECTORIES_FIELD_NUMBER: _ClassVar[int]
    PRIORITIES_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    timeout_ms: int
    trajectories: _containers.RepeatedScalarFieldContainer[bytes]
    priorities: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, sequence: _Optional[int] = ..., timeout_ms: _Optional[int] = ..., trajectories: _Optional[_Iterable[bytes]] = ..., priorities: _Optional[_Iterable[float]] = ...) -> None: ...

class AppendResponse(_message.Message):
    __slots__ = ("sequence", "outcome", "reason")
    class Outcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        OUTCOME_UNSPECIFIED: _ClassVar[AppendResponse.Outcome]
        OUTCOME_STORED: _ClassVar[AppendResponse.Outcome]
        OUTCOME_DUPLICATE: _ClassVar[AppendResponse.Outcome]
        OUTCOME_TIMED_OUT: _ClassVar[AppendResponse.Outcome]
        OUTCOME_REJECTED: _ClassVar[AppendResponse.Outcome]
        OUTCOME_PENDING: _ClassVar[AppendResponse.Outcome]
    OUTCOME_UNSPECIFIED: AppendResponse.Outcome
    OUTCOME_STORED: AppendResponse.Outcome
    OUTCOME_DUPLICATE: AppendResponse.Outcome
    OUTCOME_TIMED_OUT: AppendResponse.Outcome
    OUTCOME_REJECTED: AppendResponse.Outcome
    OUTCOME_PENDING: AppendResponse.Outcome
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
    __slots__ = ("items", "transitions", "num_items", "num_bytes", "priority_mass", "steps_inserted", "episodes")
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    TRANSITIONS_FIELD_NUMBER: _ClassVar[int]
    NUM_ITEMS_FIELD_NUMBER: _ClassVar[int]
    NUM_BYTES_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_MASS_FIELD_NUMBER: _ClassVar[int]
    STEPS_INSERTED_FIELD_NUMBER: _ClassVar[int]
    EPISODES_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedCompositeFieldContainer[Item]
    transitions: Transitions
    num_items: int
    num_bytes: int
    priority_mass: float
    steps_inserted: int
    episodes: _containers.RepeatedCompositeFieldContainer[_trajectory_pb2.Episode]
    def __init__(self, items: _Optional[_Iterable[_Union[Item, _Mapping]]] = ..., transitions: _Optional[_Union[Transitions, _Mapping]] = ..., num_items: _Optional[int] = ..., num_bytes: _Optional[int] = ..., priority_mass: _Optional[float] = ..., steps_inserted: _Optional[int] = ..., episodes: _Optional[_Iterable[_Union[_trajectory_pb2.Episode, _Mapping]]] = ...) -> None: ...

class Item(_message.Message):
    __slots__ = ("key", "actor_id", "run_id", "sequence", "trajectories", "mass")
    KEY_FIELD_NUMBER: _ClassVar[int]
    ACTOR_ID_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    TRAJECTORIES_FIELD_NUMBER: _ClassVar[int]
    MASS_FIELD_NUMBER: _ClassVar[int]
    key: int
    actor_id: str
    run_id: str
    sequence: int
    trajectories: _containers.RepeatedScalarFieldContainer[bytes]
    mass: float
    def __init__(self, key: _Optional[int] = ..., actor_id: _Optional[str] = ..., run_id: _Optional[str] = ..., sequence: _Optional[int] = ..., trajectories: _Optional[_Iterable[bytes]] = ..., mass: _Optional[float] = ...) -> None: ...

class Transitions(_message.Message):
    __slots__ = ("keys", "masses", "columns")
    KEYS_FIELD_NUMBER: _ClassVar[int]
    MASSES_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    keys: _containers.RepeatedScalarFieldContainer[int]
    masses: _containers.RepeatedScalarFieldContainer[float]
    columns: _containers.RepeatedCompositeFieldContainer[_tensor_pb2.NamedTensor]
    def __init__(self, keys: _Optional[_Iterable[int]] = ..., masses: _Optional[_Iterable[float]] = ..., columns: _Optional[_Iterable[_Union[_tensor_pb2.NamedTensor, _Mapping]]] = ...) -> None: ...

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
    __slots__ = ("table", "kind", "durability", "degraded", "num_items", "num_bytes", "ram_bytes", "disk_bytes", "max_items", "max_bytes", "priority_mass", "num_inserted", "num_sampled_out", "num_evicted", "num_rejected", "num_corrupt", "num_duplicates", "num_insert_timeouts", "num_sample_timeouts", "num_samples", "num_priorities_updated", "num_priorities_gone", "num_insert_waits", "num_sample_waits", "insert_wait_s", "sample_wait_s", "unrolls")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    DURABILITY_FIELD_NUMBER: _ClassVar[int]
    DEGRADED_FIELD_NUMBER: _ClassVar[int]
    NUM_ITEMS_FIELD_NUMBER: _ClassVar[int]
    NUM_BYTES_FIELD_NUMBER: _ClassVar[int]
    RAM_BYTES_FIELD_NUMBER: _ClassVar[int]
    DISK_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_ITEMS_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_MASS_FIELD_NUMBER: _ClassVar[int]
    NUM_INSERTED_FIELD_NUMBER: _ClassVar[int]
    NUM_SAMPLED_OUT_FIELD_NUMBER: _ClassVar[int]
    NUM_EVICTED_FIELD_NUMBER: _ClassVar[int]
    NUM_REJECTED_FIELD_NUMBER: _ClassVar[int]
    NUM_CORRUPT_FIELD_NUMBER: _ClassVar[int]
    NUM_DUPLICATES_FIELD_NUMBER: _ClassVar[int]
    NUM_INSERT_TIMEOUTS_FIELD_NUMBER: _ClassVar[int]
    NUM_SAMPLE_TIMEOUTS_FIELD_NUMBER: _ClassVar[int]
    NUM_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    NUM_PRIORITIES_UPDATED_FIELD_NUMBER: _ClassVar[int]
    NUM_PRIORITIES_GONE_FIELD_NUMBER: _ClassVar[int]
    NUM_INSERT_WAITS_FIELD_NUMBER: _ClassVar[int]
    NUM_SAMPLE_WAITS_FIELD_NUMBER: _ClassVar[int]
    INSERT_WAIT_S_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_WAIT_S_FIELD_NUMBER: _ClassVar[int]
    UNROLLS_FIELD_NUMBER: _ClassVar[int]
    table: str
    kind: str
    durability: str
    degraded: str
    num_items: int
    num_bytes: int
    ram_bytes: int
    disk_bytes: int
    max_items: int
    max_bytes: int
    priority_mass: float
    num_inserted: int
    num_sampled_out: int
    num_evicted: int
    num_rejected: int
    num_corrupt: int
    num_duplicates: int
    num_insert_timeouts: int
    num_sample_timeouts: int
    num_samples: int
    num_priorities_updated: int
    num_priorities_gone: int
    num_insert_waits: int
    num_sample_waits: int
    insert_wait_s: float
    sample_wait_s: float
    unrolls: int
    def __init__(self, table: _Optional[str] = ..., kind: _Optional[str] = ..., durability: _Optional[str] = ..., degraded: _Optional[str] = ..., num_items: _Optional[int] = ..., num_bytes: _Optional[int] = ..., ram_bytes: _Optional[int] = ..., disk_bytes: _Optional[int] = ..., max_items: _Optional[int] = ..., max_bytes: _Optional[int] = ..., priority_mass: _Optional[float] = ..., num_inserted: _Optional[int] = ..., num_sampled_out: _Optional[int] = ..., num_evicted: _Optional[int] = ..., num_rejected: _Optional[int] = ..., num_corrupt: _Optional[int] = ..., num_duplicates: _Optional[int] = ..., num_insert_timeouts: _Optional[int] = ..., num_sample_timeouts: _Optional[int] = ..., num_samples: _Optional[int] = ..., num_priorities_updated: _Optional[int] = ..., num_priorities_gone: _Optional[int] = ..., num_insert_waits: _Optional[int] = ..., num_sample_waits: _Optional[int] = ..., insert_wait_s: _Optional[float] = ..., sample_wait_s: _Optional[float] = ..., unrolls: _Optional[int] = ...) -> None: ...
