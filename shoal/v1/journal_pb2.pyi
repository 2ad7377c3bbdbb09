from shoal.v1 import spec_pb2 as _spec_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class JournalRecord(_message.Message):
    __slots__ = ("inserted", "removed", "sampled", "priorities", "state")
    INSERTED_FIELD_NUMBER: _ClassVar[int]
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    SAMPLED_FIELD_NUMBER: _ClassVar[int]
    PRIORITIES_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    inserted: InsertedRecord
    removed: RemovedRecord
    sampled: SampledRecord
    priorities: PrioritiesRecord
    state: StateRecord
    def __init__(self, inserted: _Optional[_Union[InsertedRecord, _Mapping]] = ..., removed: _Optional[_Union[RemovedRecord, _Mapping]] = ..., sampled: _Optional[_Union[SampledRecord, _Mapping]] = ..., priorities: _Optional[_Union[PrioritiesRecord, _Mapping]] = ..., state: _Optional[_Union[StateRecord, _Mapping]] = ...) -> None: ...

class InsertedRecord(_message.Message):
    __slots__ = ("first_key", "num_keys", "actor_id", "run_id", "sequence", "priorities", "streams", "first_steps", "unroll_length", "signature")
    FIRST_KEY_FIELD_NUMBER: _ClassVar[int]
    NUM_KEYS_FIELD_NUMBER: _ClassVar[int]
    ACTOR_ID_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    PRIORITIES_FIELD_NUMBER: _ClassVar[int]
    STREAMS_FIELD_NUMBER: _ClassVar[int]
    FIRST_STEPS_FIELD_NUMBER: _ClassVar[int]
    UNROLL_LENGTH_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    first_key: int
    num_keys: int
    actor_id: str
    run_id: str
    sequence: int
    priorities: _containers.RepeatedScalarFieldContainer[float]
    streams: _containers.RepeatedScalarFieldContainer[int]
    first_steps: _containers.RepeatedScalarFieldContainer[int]
    unroll_length: int
    signature: _containers.RepeatedCompositeFieldContainer[_spec_pb2.ArraySpec]
    def __init__(self, first_key: _Optional[int] = ..., num_keys: _Optional[int] = ..., actor_id: _Optional[str] = ..., run_id: _Optional[str] = ..., sequence: _Optional[int] = ..., priorities: _Optional[_Iterable[float]] = ..., streams: _Optional[_Iterable[int]] = ..., first_steps: _Optional[_Iterable[int]] = ..., unroll_length: _Optional[int] = ..., signature: _Optional[_Iterable[_Union[_spec_pb2.ArraySpec, _Mapping]]] = ...) -> None: ...

class RemovedRecord(_message.Message):
    __slots__ = ("keys",)
    KEYS_FIELD_NUMBER: _ClassVar[int]
    keys: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, keys: _Optional[_Iterable[int]] = ...) -> None: ...

class SampledRecord(_message.Message):
    __slots__ = ("num_samples", "keys")
    NUM_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    num_samples: int
    keys: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, num_samples: _Optional[int] = ..., keys: _Optional[_Iterable[int]] = ...) -> None: ...

class PrioritiesRecord(_message.Message):
    __slots__ = ("keys", "priorities")
    KEYS_FIELD_NUMBER: _ClassVar[int]
    PRIORITIES_FIELD_NUMBER: _ClassVar[int]
    keys: _containers.RepeatedScalarFieldContainer[int]
    priorities: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, keys: _Optional[_Iterable[int]] = ..., priorities: _Optional[_Iterable[float]] = ...) -> None: ...

class StateRecord(_message.Message):
    __slots__ = ("kind", "signature", "next_key", "counters", "lives", "num_keys", "has_priorities", "has_times_sampled")
    class CountersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    KIND_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    NEXT_KEY_FIELD_NUMBER: _ClassVar[int]
    COUNTERS_FIELD_NUMBER: _ClassVar[int]
    LIVES_FIELD_NUMBER: _ClassVar[int]
    NUM_KEYS_FIELD_NUMBER: _ClassVar[int]
    HAS_PRIORITIES_FIELD_NUMBER: _ClassVar[int]
    HAS_TIMES_SAMPLED_FIELD_NUMBER: _ClassVar[int]
    kind: str
    signature: _containers.RepeatedCompositeFieldContainer[_spec_pb2.ArraySpec]
    next_key: int
    counters: _containers.ScalarMap[str, float]
    lives: _containers.RepeatedCompositeFieldContainer[SeenLife]
    num_keys: int
    has_priorities: bool
    has_times_sampled: bool
    def __init__(self, kind: _Optional[str] = ..., signature: _Optional[_Iterable[_Union[_spec_pb2.ArraySpec, _Mapping]]] = ..., next_key: _Optional[int] = ..., counters: _Optional[_Mapping[str, float]] = ..., lives: _Optional[_Iterable[_Union[SeenLife, _Mapping]]] = ..., num_keys: _Optional[int] = ..., has_priorities: _Optional[bool] = ..., has_times_sampled: _Optional[bool] = ...) -> None: ...

class SeenLife(_message.Message):
    __slots__ = ("actor_id", "run_id", "highest", "seen")
    ACTOR_ID_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    HIGHEST_FIELD_NUMBER: _ClassVar[int]
    SEEN_FIELD_NUMBER: _ClassVar[int]
    actor_id: str
    run_id: str
    highest: int
    seen: bytes
    def __init__(self, actor_id: _Optional[str] = ..., run_id: _Optional[str] = ..., highest: _Optional[int] = ..., seen: _Optional[bytes] = ...) -> None: ...
