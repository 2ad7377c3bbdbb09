from shoal.v1 import tensor_pb2 as _tensor_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Episode(_message.Message):
    __slots__ = ("episode_return", "num_steps", "first_version")
    EPISODE_RETURN_FIELD_NUMBER: _ClassVar[int]
    NUM_STEPS_FIELD_NUMBER: _ClassVar[int]
    FIRST_VERSION_FIELD_NUMBER: _ClassVar[int]
    episode_return: float
    num_steps: int
    first_version: int
    def __init__(self, episode_return: _Optional[float] = ..., num_steps: _Optional[int] = ..., first_version: _Optional[int] = ...) -> None: ...

class Column(_message.Message):
    __slots__ = ("name", "dtype", "shape")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    name: str
    dtype: _tensor_pb2.DType
    shape: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, name: _Optional[str] = ..., dtype: _Optional[_Union[_tensor_pb2.DType, str]] = ..., shape: _Optional[_Iterable[int]] = ...) -> None: ...

class Layout(_message.Message):
    __slots__ = ("columns",)
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    columns: _containers.RepeatedCompositeFieldContainer[Column]
    def __init__(self, columns: _Optional[_Iterable[_Union[Column, _Mapping]]] = ...) -> None: ...

class Block(_message.Message):
    __slots__ = ("codec", "crc32c", "data")
    CODEC_FIELD_NUMBER: _ClassVar[int]
    CRC32C_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    codec: _tensor_pb2.Codec
    crc32c: int
    data: bytes
    def __init__(self, codec: _Optional[_Union[_tensor_pb2.Codec, str]] = ..., crc32c: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class Trajectory(_message.Message):
    __slots__ = ("layout", "blocks", "episodes", "stream", "first_step")
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    EPISODES_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    FIRST_STEP_FIELD_NUMBER: _ClassVar[int]
    layout: bytes
    blocks: _containers.RepeatedCompositeFieldContainer[Block]
    episodes: _containers.RepeatedCompositeFieldContainer[Episode]
    stream: int
    first_step: int
    def __init__(self, layout: _Optional[bytes] = ..., blocks: _Optional[_Iterable[_Union[Block, _Mapping]]] = ..., episodes: _Optional[_Iterable[_Union[Episode, _Mapping]]] = ..., stream: _Optional[int] = ..., first_step: _Optional[int] = ...) -> None: ...
