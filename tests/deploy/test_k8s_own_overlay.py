"""An overlay of the user's own, as the documentation shows it."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import shoal
from shoal.config import load_config
from tests.deploy.k8s_render import (
    K8S,
    ROOT,
    kustomize,
    needs_kubectl,
    of_kind,
    run_yaml,
    the_container,
    workloads,
)

pytestmark = needs_kubectl


def test_the_example_renders(tmp_path: Path) -> None:
    page = (ROOT / "docs/operations.md").read_text()
    (example,) = re.findall(
        r"```yaml\n# deploy/k8s/overlays/mine/kustomization.yaml\n(.*?)```", page, re.DOTALL
    )
    for name in ("k8s", "prometheus", "grafana"):
        shutil.copytree(K8S.parent / name, tmp_path / name)
    own = tmp_path / "k8s/overlays/mine"
    own.mkdir()
    (own / "kustomization.yaml").write_text(example)
    shutil.copy(ROOT / "configs/pong.yaml", own / "run.yaml")

    objects = kustomize(own)
    assert [one["metadata"]["name"] for one in of_kind(objects, "Namespace")] == ["mine"]
    assert {one["metadata"]["namespace"] for one in of_kind(objects, "Deployment", "ScaledObject")} == {
        "mine"
    }
    found = workloads(objects)
    images = {service: the_container(workload)["image"] for service, workload in found.items()}
    assert images.pop("actor") == "registry.example.com/my-actor:3"
    assert images == {
        service: f"registry.example.com/shoal-{service}:{shoal.__version__}" for service in images
    }
    assert found["replay"]["spec"]["replicas"] == 4
    assert "replicas" not in found["actor"]["spec"]
    queries = [one["spec"]["triggers"][0]["metadata"]["query"] for one in of_kind(objects, "ScaledObject")]
    assert len(queries) == 2
    assert all('{run="mine"} >= 0)' in query for query in queries)
    (tmp_path / "run.yaml").write_text(run_yaml(objects))
    assert load_config(tmp_path / "run.yaml", environ={}).env.id == "ALE/Pong-v5"
