"""The ResNets: weights in both formats, the trunk with its head beside a literal network, and the use case in small."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional

import dpvalue as dpv
from dpvalue.experiments.paper import EXPERIMENTS, resnets, use_cases
from dpvalue.experiments.paper.datasets import MissingDataError
from dpvalue.experiments.paper.trials import TrialScale
from dpvalue.experiments.paper.valuing import run_methods


def weights(name: str) -> dict[str, torch.Tensor]:
    """Made weights of a ResNet under torchvision's names."""
    generator = torch.Generator().manual_seed(0)
    shapes = {**resnets.Trunk(name).state_dict()}
    last = f"layer4.{resnets.DEPTHS[name][-1] - 1}"
    shapes |= {f"{last}.{key}": value for key, value in resnets.ResidualBlock(512, 512).state_dict().items()}
    made = {}
    for key, like in shapes.items():
        if not key.endswith("num_batches_tracked"):
            scale = 0.02 if like.dim() > 1 else 1.0
            made[key] = scale * torch.rand(like.shape, generator=generator)
    return {**made, "fc.weight": torch.zeros(1000, 512), "fc.bias": torch.zeros(1000)}


def test_torchvisions_names() -> None:
    names = set(resnets.state_shapes("resnet34"))
    some = {
        "conv1.weight",
        "bn1.running_var",
        "layer2.0.downsample.0.weight",
        "layer3.5.bn2.bias",
        "layer4.2.conv2.weight",
    }
    assert some <= names
    assert len(names) == 180  # torchvision's 218 entries, less 36 counters of batches and the head


def test_weights_from_both_formats(tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match=r"resnet18\*\.pth as torchvision publishes it"):
        resnets.load_weights("resnet18", tmp_path)
    made = weights("resnet18")
    torch.save(made, tmp_path / "resnet18-f37072fd.pth")
    first = resnets.load_weights("resnet18", tmp_path)
    (tmp_path / "resnet18-f37072fd.pth").unlink()
    save_file({key: tensor.half() for key, tensor in made.items()}, tmp_path / "resnet18_fp16.safetensors")
    second = resnets.load_weights("resnet18", tmp_path)
    assert first.keys() == second.keys()
    assert all(torch.allclose(first[key], second[key], atol=1e-3) for key in first)
    assert "fc.weight" not in first
    for name, content in (("resnet18_fp16.safetensors", b"nonsense"), ("resnet18_a.pth", b"nonsense")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(dpv.DpvalueError, match="resnet18") as caught:
            resnets.load_weights("resnet18", tmp_path)
        assert "\n" not in str(caught.value)
        (tmp_path / name).unlink()
    save_file({"conv1.weight": made["conv1.weight"]}, tmp_path / "resnet18_cut.safetensors")
    with pytest.raises(dpv.DpvalueError, match="is no resnet18 of torchvision"):
        resnets.load_weights("resnet18", tmp_path)
    (tmp_path / "resnet18_cut.safetensors").unlink()
    for wrong in ({**made, "conv1.weight": made["conv1.weight"][:3]}, [1, 2], dict.fromkeys(made, 1)):
        torch.save(wrong, tmp_path / "resnet18.pth")
        with pytest.raises(dpv.DpvalueError, match="is no resnet18 of torchvision"):
            resnets.load_weights("resnet18", tmp_path)


def test_a_trunk_and_its_head_are_the_whole_network(tmp_path: Path) -> None:
    made = weights("resnet18")
    torch.save(made, tmp_path / "resnet18.pth")
    images = np.random.default_rng(0).random((3, 3, 32, 32)).astype(np.float32)
    found, _ = resnets.features("resnet18", (images, np.zeros(3)), tmp_path, "cpu")
    head = resnets.HeadFactory("resnet18", tmp_path, 10)()
    assert not any(layer.training for layer in head.modules())
    with torch.no_grad():
        ours = head.get_submodule("block")(torch.from_numpy(found))

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        mean, var, weight, bias = (made[f"{name}.{part}"] for part in ("running_mean", "running_var", "weight", "bias"))
        return functional.batch_norm(x, mean, var, weight, bias)

    large = functional.interpolate(torch.from_numpy(images), (resnets.PIXELS,) * 2, mode="bilinear", antialias=True)
    mean, deviation = (torch.tensor(one).view(3, 1, 1) for one in (resnets.MEAN, resnets.DEVIATION))
    x = functional.conv2d((large - mean) / deviation, made["conv1.weight"], stride=2, padding=3)
    x = functional.max_pool2d(norm(x, "bn1").relu(), 3, 2, padding=1)
    for layer in range(1, 5):
        for block in range(2):
            at, stride = f"layer{layer}.{block}", 2 if layer > 1 and block == 0 else 1
            inside = norm(
                functional.conv2d(x, made[f"{at}.conv1.weight"], stride=stride, padding=1), f"{at}.bn1"
            ).relu()
            inside = norm(functional.conv2d(inside, made[f"{at}.conv2.weight"], padding=1), f"{at}.bn2")
            if stride == 2:
                x = norm(functional.conv2d(x, made[f"{at}.downsample.0.weight"], stride=2), f"{at}.downsample.1")
            x = (inside + x).relu()
    torch.testing.assert_close(ours, x, rtol=1e-3, atol=1e-3)
    pooled, _ = resnets.features("resnet18", (images, np.zeros(3)), tmp_path, "cpu", pooled=True)
    np.testing.assert_allclose(pooled, x.mean((-2, -1)), rtol=1e-3, atol=1e-3)


def test_a_head_can_be_valued() -> None:
    """The last block, in small: many models at once give what each gives alone."""

    def small() -> nn.Module:
        block = resnets.ResidualBlock(6, 6)
        return nn.Sequential(block, nn.Flatten(), nn.Linear(24, 3)).eval()

    generator = np.random.default_rng(0)
    X, y = generator.normal(size=(60, 6, 2, 2)), np.arange(60) % 3
    X[np.arange(60), y] += 2
    result = dpv.value(
        (X[:20], y[:20]), (X[20:], y[20:]), model=small, privacy=None, permutations=5, learning_rate=0.1, progress=False
    )
    assert np.isfinite(result.values["shapley"]).all()
    assert result.values["shapley"].sum() > 0


@pytest.mark.slow
def test_a_resnet_in_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Made weights and images; a network other than the CNN multiplies in TF32, and only it does."""
    made = {key: tensor - tensor.mean() if tensor.dim() > 1 else tensor for key, tensor in weights("resnet18").items()}
    torch.save(
        {key: 4 * tensor if tensor.dim() > 1 else tensor for key, tensor in made.items()}, tmp_path / "resnet18.pth"
    )
    generator = np.random.default_rng(0)
    y = np.arange(900) % 10
    images = (25 * y[:, None, None, None] + generator.integers(0, 20, (900, 32, 32, 3))).astype(np.uint8)
    np.savez(tmp_path / "cifar10.npz", x_train=images, y_train=y, x_test=images[:1], y_test=y[:1])
    precisions = []

    def noted(*rest: Any, **settings: Any) -> Any:
        precisions.append(torch.get_float32_matmul_precision())
        return run_methods(*rest, **settings)

    monkeypatch.setattr(use_cases, "run_methods", noted)
    found = EXPERIMENTS["sets-resnet18"].trial(TrialScale(quick=True, data=str(tmp_path)), 0)["readings"]
    assert found["as printed"]["no DP"]["auc"] is not None
    assert set(precisions) == {"high"}
    assert torch.get_float32_matmul_precision() == "highest"
