import json

import pytest

from growpage.bench.pool import full_pages, page_bytes, pool_pages
from growpage.bench.workload import DemoRequest

SMOLLM2 = {
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "hidden_size": 576,
    "head_dim": 64,
    "dtype": "bfloat16",
}


def request(prompt: int, new: int) -> DemoRequest:
    return DemoRequest("r", "list", [1] * prompt, new)


@pytest.mark.parametrize(
    ("prompt", "new", "pages"), [(1, 1, 1), (31, 1, 1), (32, 1, 2), (40, 384, 14)]
)
def test_pages_at_full_length(prompt, new, pages):
    assert full_pages(request(prompt, new), 32) == pages


def test_pool_holds_a_fifth_rounded_up():
    requests = [request(40, 384)] * 31 + [request(150, 384)]  # 31 x 14 pages and 17
    assert pool_pages(requests, 32) == 91  # 451 / 5 = 90.2


def test_pool_holds_the_largest_request():
    assert pool_pages([request(40, 384)] * 3, 32) == 14
    assert pool_pages([request(1, 1)], 32) == 1


def test_bytes_of_a_page(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(SMOLLM2))
    assert page_bytes(tmp_path, 32) == 30 * 3 * 32 * (64 + 64) * 2
    assert page_bytes(tmp_path, 32, dtype="float32") == 30 * 3 * 32 * (64 + 64) * 4
    assert page_bytes(tmp_path, 32, "fp8", "float32") == 30 * 3 * 32 * (64 + 64)
    assert page_bytes(tmp_path, 32, "bfloat16", "float32") == 30 * 3 * 32 * (64 + 64) * 2


def test_older_and_shorter_configurations(tmp_path):
    config = {**SMOLLM2, "torch_dtype": "float32"}
    for key in ("head_dim", "num_key_value_heads", "dtype"):
        del config[key]
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert page_bytes(tmp_path, 32) == 30 * 9 * 32 * (64 + 64) * 2, "served in 16 bits"
    assert page_bytes(tmp_path, 32, "fp8") == 30 * 9 * 32 * (64 + 64)


def test_not_a_model(tmp_path):
    with pytest.raises(ValueError, match="not a model's folder"):
        page_bytes(tmp_path, 32)


@pytest.mark.parametrize("content", ["{", "{}", json.dumps({**SMOLLM2, "dtype": "int4"})])
def test_not_a_usable_configuration(tmp_path, content):
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(ValueError, match=r"size of a page from .*config\.json"):
        page_bytes(tmp_path, 32)
