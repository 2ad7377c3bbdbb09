"""A run is trained, its checkpoint evaluated and exported, and the files run where shoal is not."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.cli_process import shoal

pytestmark = pytest.mark.timeout(360)

SMALL = ("--envs-per-actor", "16", "--set", "learner.batch_envs=8", "--run-dir", "run")

# A network of the user's own, in the working directory.
NETWORK = """
import torch

class Wide(torch.nn.Module):
    def __init__(self, observation, num_features):
        super().__init__()
        self.num_features = num_features
        self.layer = torch.nn.Linear(observation[0].shape[0], num_features)

    def forward(self, observation):
        return torch.relu(self.layer(observation["observation"]))
"""

# Plays CartPole with nothing but the file and what stands beside it.
STRANGER = """
import json, sys
import gymnasium as gym
import numpy as np

sys.modules["shoal"] = sys.modules["services"] = None
path = sys.argv[1]
described = json.load(open(path + ".json"))
state = {
    array["name"]: np.zeros([1, *array["shape"][1:]], array["dtype"])
    for array in described["inputs"]
    if array["meaning"].startswith("state")
}
if described["format"] == "onnx":
    sys.modules["torch"] = None
    import onnxruntime

    session = onnxruntime.InferenceSession(path)
    names = [output.name for output in session.get_outputs()]

    def step(observation, first, state):
        return dict(zip(names, session.run(None, {"observation": observation, "first": first, **state})))
else:
    import torch

    module = torch.export.load(path).module()

    def step(observation, first, state):
        tensors = {name: torch.from_numpy(array) for name, array in state.items()}
        outputs = module({"observation": torch.from_numpy(observation)}, torch.from_numpy(first), tensors)
        return {name: tensor.numpy() for name, tensor in outputs.items()}

env = gym.make("CartPole-v1")
observation, _ = env.reset(seed=int(sys.argv[2]))
total, first, done = 0.0, True, False
while not done:
    outputs = step(observation[None], np.array([first]), state)
    state = {name: outputs["next." + name] for name in state}
    observation, reward, terminated, truncated, _ = env.step(int(outputs["action"][0]))
    total, first, done = total + reward, False, terminated or truncated
print(total)
"""


def test_from_training_to_files_that_run_without_shoal(tmp_path: Path) -> None:
    (tmp_path / "wide.py").write_text(NETWORK)
    memory = ("--set", "policy.recurrent=gru", "--set", "policy.recurrent_size=16")
    # Those who run the file show it the environment's observations and nothing else.
    memory += ("--set", "policy.previous_inputs=false")
    memory += ("--set", "policy.network=wide:Wide", "--set", "policy.network_kwargs={num_features: 24}")
    # Single environments: a batch of CartPole's own starts its episodes otherwise.
    options = ("--steps", "6000", "--seed", "3", *memory, "--set", "env.vectorization=sync", *SMALL)
    with shoal("train", "cartpole", *options, cwd=tmp_path) as run:
        assert run.wait() == 0, f"{run.stdout}\n{run.stderr}"

    evaluation = ("--episodes", "3", "--envs", "3", "--seed", "11", "--json")
    with shoal("eval", "run", *evaluation, cwd=tmp_path) as run:
        assert run.wait() == 0, run.stderr
        record = json.loads(run.stdout)
    returns = record["policies"]["policy"]["returns"]
    assert len(returns) == 3
    (written,) = (tmp_path / "run").glob("eval-*.json")
    assert json.loads(written.read_text()) == record

    for file in ("policy.pt2", "policy.onnx"):
        with shoal("export", "run", "--out", f"exported/{file}", cwd=tmp_path) as run:
            assert run.wait() == 0, run.stderr
            assert (run.stderr, run.stdout.count("\n")) == ("", 4)
        # The first environment of the evaluation had this seed.
        played = subprocess.run(
            [sys.executable, "-c", STRANGER, str(tmp_path / "exported" / file), "11"],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            timeout=100,
        )
        assert played.returncode == 0, played.stderr
        print(f"{file}: return {played.stdout.strip()} without shoal, {returns} in shoal eval")
        assert float(played.stdout) == returns[0]
