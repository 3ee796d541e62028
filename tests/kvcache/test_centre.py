"""The centre of the keys: that attention does not see it, and where it is kept."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from growpage.budget.attention import attention_weights
from growpage.kvcache.centre import KeyCentre, KeyMean
from growpage.kvcache.centre_file import CentreFile, CentreFileError

SHAPE = (2, 3, 8)
IDENTITY = {"model": "tiny", "dtype": "torch.bfloat16"}


@pytest.fixture
def centre() -> Tensor:
    return torch.randn(SHAPE, generator=torch.Generator().manual_seed(0))


# ---- the vector ----------------------------------------------------------------------------------


def test_attention_does_not_see_the_centre(centre: Tensor) -> None:
    generator = torch.Generator().manual_seed(1)
    keys = torch.randn(40, 3, 8, generator=generator, dtype=torch.float64) + 300
    queries = torch.randn(1, 6, 8, generator=generator, dtype=torch.float64)
    one = KeyCentre()
    one.set(torch.full((3, 8), 300.0, dtype=torch.float64))
    moved = one.subtract_from(keys)
    assert moved.abs().max() < 6
    plain, centred = (attention_weights(queries, k.transpose(0, 1), 0.35) for k in (keys, moved))
    assert torch.allclose(plain, centred, atol=1e-3)  # the weights are in float32
    assert plain.std() > 0.01


def test_the_centre_must_be_known_and_cannot_change(centre: Tensor) -> None:
    one = KeyCentre()
    keys = torch.randn(5, 3, 8)
    with pytest.raises(RuntimeError, match="before the centre of the keys was known"):
        one.subtract_from(keys)
    one.set(torch.zeros(3, 8))
    one.set(centre[0])  # none is stored yet
    assert torch.equal(one.subtract_from(keys), keys - centre[0])
    with pytest.raises(RuntimeError, match="cannot change once keys are stored"):
        one.set(centre[1])
    assert torch.equal(one.subtract_from(keys), keys - centre[0])


def test_the_mean_is_over_all_tokens_of_all_prompts() -> None:
    keys = torch.randn(50, 3, 8, generator=torch.Generator().manual_seed(0)).bfloat16()
    mean = KeyMean()
    for chunk in keys.split([7, 40, 3]):
        mean.add(chunk)
    assert mean.read().dtype == torch.float32
    assert torch.allclose(mean.read(), keys.float().mean(dim=0), atol=1e-6)


# ---- the file ------------------------------------------------------------------------------------


def test_what_is_written_is_read_again(tmp_path: Path, centre: Tensor) -> None:
    folder = tmp_path / "not" / "there"
    file = CentreFile(folder, IDENTITY, SHAPE)
    assert file.read() is None
    file.write(centre)
    for again in (file, CentreFile(folder, dict(reversed(IDENTITY.items())), SHAPE)):
        found = again.read()
        assert found is not None and torch.equal(found, centre)
    file.write(centre + 1)
    found = file.read()
    assert found is not None and torch.equal(found, centre + 1)
    assert [path.name for path in folder.iterdir()] == [file.path.name], "a draft was left behind"


def test_another_identity_has_another_file(tmp_path: Path, centre: Tensor) -> None:
    CentreFile(tmp_path, IDENTITY, SHAPE).write(centre)
    for change in ({"model": "tall"}, {"dtype": "torch.float16"}, {"rank": "1 of 2"}):
        assert CentreFile(tmp_path, {**IDENTITY, **change}, SHAPE).read() is None


def rewrite(change: Callable[[Tensor], Tensor]) -> Callable[[Path], None]:
    """Store something else under the right identity."""

    def spoil(path: Path) -> None:
        from safetensors import safe_open

        with safe_open(path, framework="pt") as file:
            identity = file.metadata()
        save_file({"centre": change(load_file(path)["centre"])}, path, metadata=identity)

    return spoil


def steal(path: Path) -> None:
    other = CentreFile(path.parent, {"model": "other"}, SHAPE)
    other.write(torch.zeros(SHAPE))
    other.path.replace(path)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9])


def replace_by_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (cut, "cannot be read"),
        (lambda path: path.write_bytes(b""), "cannot be read"),
        (lambda path: path.write_text("not a tensor at all"), "cannot be read"),
        (lambda path: save_file({"mean": torch.ones(1)}, path), "cannot be read"),
        (replace_by_a_folder, "cannot be read"),
        (steal, "belongs to another model or setting"),
        (rewrite(lambda centre: centre[:1].clone()), r"holds torch.float32 of shape \(1, 3, 8\)"),
        (rewrite(lambda centre: centre.double()), "holds torch.float64"),
        (rewrite(lambda centre: centre.log()), "not finite"),
    ],
    ids=["cut", "empty", "text", "no-centre", "folder", "stolen", "shape", "dtype", "nan"],
)
def test_a_file_that_cannot_be_used_is_named(
    tmp_path: Path, centre: Tensor, spoil: Callable[[Path], None], reason: str
) -> None:
    file = CentreFile(tmp_path, IDENTITY, SHAPE)
    file.write(centre)
    spoil(file.path)
    with pytest.raises(CentreFileError, match=reason) as error:
        file.read()
    assert str(file.path) in str(error.value)


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path, centre: Tensor) -> None:
    (tmp_path / "taken").write_text("")
    file = CentreFile(tmp_path / "taken", IDENTITY, SHAPE)
    with pytest.raises(CentreFileError, match=r"taken.* cannot be written"):
        file.write(centre)
