"""The protocol's files: generated code is current, and the rules for proto files hold."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import grpc_tools
import pytest
from google.protobuf import descriptor_pb2
from grpc_tools import protoc

ROOT = Path(__file__).resolve().parents[2]
PROTO = ROOT / "proto"

# Field numbers of descriptor.proto, of which the paths in SourceCodeInfo are made.
MESSAGE, ENUM, SERVICE = 4, 5, 6
METHOD = 2


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[descriptor_pb2.FileDescriptorProto]:
    """Our proto files as protoc reads them, comments included."""
    return compile_protos(PROTO, tmp_path_factory.mktemp("descriptors") / "set.bin")


def compile_protos(root: Path, out: Path) -> list[descriptor_pb2.FileDescriptorProto]:
    names = sorted(path.relative_to(root).as_posix() for path in root.glob("**/*.proto"))
    well_known = Path(grpc_tools.__file__).parent / "_proto"
    options = [f"-I{root}", f"-I{well_known}", "--include_source_info", f"--descriptor_set_out={out}"]
    assert protoc.main(["protoc", *options, *names]) == 0
    return list(descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes()).file)


def broken_rules(files: Sequence[descriptor_pb2.FileDescriptorProto]) -> list[str]:
    return [*_packages(files), *_services(files), *_enums(files), *_comments(files)]


def _packages(files: Sequence[descriptor_pb2.FileDescriptorProto]) -> Iterator[str]:
    for file in files:
        if file.package != "shoal.v1" or not file.name.startswith("shoal/v1/"):
            yield f"{file.name}: package {file.package} is not shoal.v1"
        if len(file.service) != (1 if file.name.endswith("_service.proto") else 0):
            yield f"{file.name}: one service in each *_service.proto and none elsewhere"


def _services(files: Sequence[descriptor_pb2.FileDescriptorProto]) -> Iterator[str]:
    for file in files:
        for service in file.service:
            for method in service.method:
                for suffix, used in (("Request", method.input_type), ("Response", method.output_type)):
                    if used != f".shoal.v1.{method.name}{suffix}":
                        yield f"{service.name}.{method.name}: {used} is not its own {method.name}{suffix}"


def _enums(files: Sequence[descriptor_pb2.FileDescriptorProto]) -> Iterator[str]:
    for file in files:
        nested = [enum for message in file.message_type for enum in message.enum_type]
        for enum in [*file.enum_type, *nested]:
            prefix = _screaming(enum.name)
            zero = enum.value[0]
            if zero.number != 0 or zero.name != f"{prefix}_UNSPECIFIED":
                yield f"{enum.name}: the zero value is {zero.name}, not {prefix}_UNSPECIFIED"
            for value in enum.value:
                if not value.name.startswith(prefix + "_"):
                    yield f"{enum.name}: {value.name} does not start with {prefix}_"


def _screaming(name: str) -> str:
    # DType is one word: DTYPE.
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).upper()


def _comments(files: Sequence[descriptor_pb2.FileDescriptorProto]) -> Iterator[str]:
    for file in files:
        comments = {
            tuple(location.path): location.leading_comments for location in file.source_code_info.location
        }
        for number, enum in enumerate(file.enum_type):
            if not comments.get((ENUM, number)):
                yield f"{enum.name}: says nothing about itself"
        for number, service in enumerate(file.service):
            if not comments.get((SERVICE, number)):
                yield f"{service.name}: says nothing about itself"
            for index, method in enumerate(service.method):
                comment = comments.get((SERVICE, number, METHOD, index), "")
                name = f"{service.name}.{method.name}"
                if not comment:
                    yield f"{name}: says nothing about itself"
                elif method.client_streaming or method.server_streaming:
                    if "Status:" not in comment:
                        yield f"{name}: does not list its status codes"
                elif "retry" not in comment:
                    yield f"{name}: does not say whether a retry is safe"
        if not file.service:
            for number, message in enumerate(file.message_type):
                if not comments.get((MESSAGE, number)) and not _is_choice(message):
                    yield f"{message.name}: says nothing about itself"


def _is_choice(message: descriptor_pb2.DescriptorProto) -> bool:
    """A message that only wraps a oneof of commented messages needs no words of its own."""
    return len(message.oneof_decl) == 1 and all(field.HasField("oneof_index") for field in message.field)


def test_the_proto_files_keep_the_rules(files: list[descriptor_pb2.FileDescriptorProto]) -> None:
    assert sum(len(file.service) for file in files) == 3
    assert broken_rules(files) == []


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("// S.\nservice S { rpc Go(GoRequest) returns (GoResponse); }", "S.Go: says nothing"),
        ("service S { // Safe to retry.\n rpc Go(GoRequest) returns (GoResponse); }", "S: says nothing"),
        ("// S.\nservice S {\n// Goes.\nrpc Go(GoRequest) returns (GoResponse); }", "retry is safe"),
        ("// S.\nservice S {\n// Goes.\nrpc Go(stream GoRequest) returns (GoResponse); }", "status codes"),
        (
            "// S.\nservice S {\n// Safe to retry.\nrpc Go(GoRequest) returns (GoRequest); }",
            "its own GoResponse",
        ),
        ("// E.\nenum Kind { KIND_NONE = 0; }", "not KIND_UNSPECIFIED"),
        ("// E.\nenum Kind { KIND_UNSPECIFIED = 0; OTHER = 1; }", "does not start with KIND_"),
        ("enum Kind { KIND_UNSPECIFIED = 0; }", "Kind: says nothing"),
    ],
)
def test_each_broken_rule_is_seen(tmp_path: Path, text: str, complaint: str) -> None:
    folder = tmp_path / "shoal" / "v1"
    folder.mkdir(parents=True)
    messages = "message GoRequest {}\nmessage GoResponse {}\n"
    source = f'syntax = "proto3";\npackage shoal.v1;\n{messages}{text}\n'
    (folder / "x_service.proto").write_text(source)
    broken = broken_rules(compile_protos(tmp_path, tmp_path / "set.bin"))
    assert any(complaint in line for line in broken), broken


def test_the_committed_stubs_are_what_the_protos_generate() -> None:
    done = check_stubs(ROOT)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("path", "change", "complaint"),
    [
        ("proto/shoal/v1/tensor.proto", "\nmessage Extra {}\n", "stale: tensor_pb2.py"),
        ("shoal/v1/spec_pb2.py", "\n# edited by hand\n", "stale: spec_pb2.py"),
        ("shoal/v1/gone_pb2.py", "\n", "left over: gone_pb2.py"),
        ("proto/shoal/v1/new.proto", 'syntax = "proto3";\npackage shoal.v1;\n', "missing: new_pb2.py"),
    ],
)
def test_the_check_sees_a_difference(tmp_path: Path, path: str, change: str, complaint: str) -> None:
    shutil.copytree(PROTO, tmp_path / "proto")
    shutil.copytree(ROOT / "shoal/v1", tmp_path / "shoal/v1", ignore=shutil.ignore_patterns("__pycache__"))
    with open(tmp_path / path, "a") as file:
        file.write(change)
    done = check_stubs(tmp_path)
    assert done.returncode == 1
    assert complaint in done.stderr
    assert "make proto" in done.stderr


def check_stubs(root: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "scripts/proto.py"), "--check", "--root", str(root)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
