"""`shoal export`: where files go, what stands beside them, errors. What is in them: test_exporting."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from shoal.cli.app import run
from shoal.policy import export_check
from shoal.records import ArraySpec, BoxAction, DiscreteAction, EnvSpec
from tests.unit.cli.saved_runs import config_of, save_run

SPEC = EnvSpec("Far-v0", (ArraySpec("observation", "float32", (2,)),), DiscreteAction(3))
# No such environment is installed: none is needed.
FAR = "env.id=far_away:Far-v0"


def save(tmp_path: Path, *overrides: str, spec: EnvSpec = SPEC) -> str:
    return str(save_run(tmp_path / "run", config_of(FAR, *overrides), {"policy": spec}, steps=(5, 9)))


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 2) -> str:
    assert run(["export", *arguments]) == code
    text = capsys.readouterr().err
    assert text.startswith("error: ")
    assert text.count("\n") == 1
    return text


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


def zeros(arrays: list[dict[str, Any]], num: int) -> dict[str, torch.Tensor]:
    """By what the JSON says alone."""
    return {
        array["name"]: torch.zeros([num, *array["shape"][1:]], dtype=getattr(torch, array["dtype"]))
        for array in arrays
    }


def test_a_directory_gets_a_file_and_its_description(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root, out = save(tmp_path, "policy.recurrent=gru", "policy.recurrent_size=4"), tmp_path / "out" / "deep"
    assert run(["export", root, "--out", str(out)]) == 0
    assert names(out) == {"policy.pt2", "policy.pt2.json"}
    captured = capsys.readouterr()
    assert captured.err == ""
    assert captured.out.splitlines()[1:] == [
        "  in   observation float32[batch, 2], first bool[batch], recurrent.h float32[batch, 4]",
        "  out  action int64[batch], params float32[batch, 3], next.recurrent.h float32[batch, 4]",
        "  loaded again and compared with the policy: largest difference 0",
    ]
    record = json.loads((out / "policy.pt2.json").read_text())
    assert record["checkpoint"] == f"{root}/checkpoints/000002-step-9"
    assert record["env_spec"]["action"] == {"kind": "discrete", "n": 3}
    assert record["versions"]["torch"] == torch.__version__
    assert [array["meaning"] for array in record["outputs"]] == [
        "the best action of Discrete(3), counted from 0",
        "logits",
        "state: recurrent.h of the next step",
    ]
    inputs = zeros(record["inputs"], 2)
    first, state = inputs.pop("first"), {"recurrent.h": inputs.pop("recurrent.h")}
    found = torch.export.load(out / "policy.pt2").module()(inputs, first, state)
    assert list(found) == [array["name"] for array in record["outputs"]]


def test_the_name_of_a_file_says_its_format(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = save(tmp_path)
    assert run(["export", root, "--out", str(tmp_path / "x.onnx"), "--checkpoint", "000001-step-5"]) == 0
    assert run(["export", root, "--out", str(tmp_path / "dir"), "--format", "onnx"]) == 0
    assert names(tmp_path) == {"run", "dir", "x.onnx", "x.onnx.json"}
    assert names(tmp_path / "dir") == {"policy.onnx", "policy.onnx.json"}
    record = json.loads((tmp_path / "x.onnx.json").read_text())
    assert (record["format"], record["learner_steps"]) == ("onnx", 5)
    assert record["largest_difference"] <= 1e-5
    assert {"onnx", "onnxruntime", "onnxscript", "torch"} <= record["versions"].keys()
    text = refusal(capsys, root, "--out", str(tmp_path / "y.pt2"), "--format", "onnx")
    assert "y.pt2 is the name of a torch file, and --format is onnx" in text
    assert "Invalid value for '--format'" in refusal(capsys, root, "--out", "z", "--format", "jax")


@pytest.mark.parametrize(
    ("overrides", "spec", "meaning"),
    [
        (["policy.kind=q"], SPEC, "value of each action"),
        ([], EnvSpec("F", SPEC.observation, BoxAction((1,), (-1.0,), (1.0,))), "means, then log standard"),
        (
            ["policy.kind=deterministic"],
            EnvSpec("F", SPEC.observation, BoxAction((1,), (-1.0,), (1.0,))),
            "the action within [-1, 1]",
        ),
        ([], EnvSpec("F", (*SPEC.observation, ArraySpec("action_mask", "int8", (3,))), DiscreteAction(3)),
         "logits, those of forbidden actions too"),
    ],
)  # fmt: skip
def test_meaning_of_params(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], overrides: list[str], spec: EnvSpec, meaning: str
) -> None:
    assert run(["export", save(tmp_path, *overrides, spec=spec), "--out", str(tmp_path / "x.pt2")]) == 0
    assert capsys.readouterr().err == ""
    record = json.loads((tmp_path / "x.pt2.json").read_text())
    assert record["outputs"][1]["meaning"].startswith(meaning)


def test_several_policies(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = EnvSpec("Far-v0", (ArraySpec("observation", "float32", (5,)),), DiscreteAction(2))
    config = config_of(FAR, "env.policies={red: ['red_*'], blue: ['blue_*']}")
    root = str(save_run(tmp_path / "run", config, {"red": SPEC, "blue": other}))
    assert run(["export", root, "--out", str(tmp_path / "all")]) == 0
    assert names(tmp_path / "all") == {"red.pt2", "red.pt2.json", "blue.pt2", "blue.pt2.json"}
    named = ["--checkpoint", "000001-step-5"]
    assert run(["export", root, "--out", str(tmp_path / "x.pt2"), "--policy", "blue", *named]) == 0
    record = json.loads((tmp_path / "x.pt2.json").read_text())
    assert record["policy"] == "blue"
    assert record["inputs"][0]["shape"] == ["batch", 5]
    text = refusal(capsys, root, "--out", str(tmp_path / "y.pt2"))
    assert "y.pt2 is one file, and the run has the policies blue, red" in text
    text = refusal(capsys, root, "--out", "z", "--policy", "green")
    assert "has no policy 'green': it has blue, red" in text


def test_what_differs_is_not_left_behind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    root, path = save(tmp_path), tmp_path / "x.pt2"
    monkeypatch.setattr(export_check, "largest_difference", lambda network, step: 0.25)
    text = refusal(capsys, root, "--out", str(path), code=1)
    assert "differs from the policy by 0.25 (limit 1e-05)" in text
    assert names(tmp_path) == {"run"}
    path.write_text("of before")
    refusal(capsys, root, "--out", str(path), code=1)
    assert path.read_text() == "of before"


@pytest.mark.parametrize("missing", ["onnx", "onnxruntime", "onnxscript"])
def test_without_the_extra(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    text = refusal(capsys, "run", "--out", str(tmp_path / "x.onnx"))
    assert text == f"error: --format onnx needs {missing}: pip install 'shoal[export]'\n"


def test_without_torch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    text = refusal(capsys, "run", "--out", str(tmp_path / "x.pt2"))
    assert text == "error: shoal export needs torch: pip install 'shoal[inference]'\n"
    assert run(["eval", "run"]) == 2
    assert capsys.readouterr().err == "error: shoal eval needs torch: pip install 'shoal[inference]'\n"


def test_where_nothing_can_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = save(tmp_path)
    (tmp_path / "file").touch()
    assert "cannot make the directory" in refusal(capsys, root, "--out", str(tmp_path / "file" / "x.pt2"))
    assert "is no run directory" in refusal(capsys, str(tmp_path / "none"), "--out", str(tmp_path / "x.pt2"))
    assert "Missing option '--out'" in refusal(capsys, root)
