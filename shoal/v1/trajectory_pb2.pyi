from shoal.v1 import tensor_pb2 as _tensor_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Episode(_message.Message):
    __slots__ = ("episode_return", "num_steps")
    EPISODE_RETURN_FIELD_NUMBER: _ClassVar[int]
    NUM_STEPS_FIELD_NUMBER: _ClassVar[int]
    episode_return: float
    num_steps: int
    def __init__(self, episode_return: _Optional[float] = ..., num_steps: _Optional[int] = ...) -> None: ...

class Trajectory(_message.Message):
    __slots__ = ("columns", "episodes", "stream", "first_step")
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    EPISODES_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    FIRST_STEP_FIELD_NUMBER: _ClassVar[int]
    columns: _containers.RepeatedCompositeFieldContainer[_tensor_pb2.NamedTensor]
    episodes: _containers.RepeatedCompositeFieldContainer[Episode]
    stream: int
    first_step: int
    def __init__(self, columns: _Optional[_Iterable[_Union[_tensor_pb2.NamedTensor, _Mapping]]] = ..., episodes: _Optional[_Iterable[_Union[Episode, _Mapping]]] = ..., stream: _Optional[int] = ..., first_step: _Optional[int] = ...) -> None: ...
