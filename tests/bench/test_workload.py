import pytest

from growpage.bench.workload import FAMILIES, MAX_NEW_TOKENS, SIZE, demo_workload


class Words:
    """A tokenizer whose tokens are words, numbered by their length."""

    def apply_chat_template(self, conversation, *, add_generation_prompt, return_dict):
        assert add_generation_prompt and return_dict is False
        (message,) = conversation
        assert message["role"] == "user"
        return [len(word) for word in message["content"].split()]


def test_has_32_requests_with_their_own_names():
    requests = demo_workload(Words())
    assert len(requests) == SIZE == 32
    assert len({request.id for request in requests}) == 32
    assert all(request.max_new_tokens == MAX_NEW_TOKENS for request in requests)


def test_is_the_same_every_time():
    assert demo_workload(Words()) == demo_workload(Words())


def test_demand_is_unequal():
    lengths = [len(request.prompt_token_ids) for request in demo_workload(Words())]
    assert max(lengths) > 5 * min(lengths)
    assert len(set(lengths)) > 15


def test_prompts_differ():
    prompts = [prompt for prompts in FAMILIES.values() for prompt in prompts]
    assert len(set(prompts)) == len(prompts)


def test_families_take_turns_so_that_a_part_of_it_is_mixed_too():
    part = demo_workload(Words(), size=6, max_new_tokens=8)
    assert [request.family for request in part] == ["short", "list", "recall"] * 2
    assert part[0].id == "short-01"
    assert part == [
        request
        for request in demo_workload(Words(), max_new_tokens=8)
        if request.id in {each.id for each in part}
    ]


@pytest.mark.parametrize("size", [0, -1, 33])
def test_size_out_of_range(size):
    with pytest.raises(ValueError, match=f"1 to 32 requests, not {size}"):
        demo_workload(Words(), size=size)


def test_no_new_token():
    with pytest.raises(ValueError, match="at least 1 new token, not 0"):
        demo_workload(Words(), max_new_tokens=0)
