import pytest

from growpage.bench.agreement import Agreement, agreement, mean_agreement


@pytest.mark.parametrize(
    ("output", "reference", "prefix", "equal"),
    [
        ([1, 2, 3, 4], [1, 2, 3, 4], 1.0, 1.0),
        ([1, 2, 9, 4], [1, 2, 3, 4], 0.5, 0.75),
        ([9, 2, 3, 4], [1, 2, 3, 4], 0.0, 0.75),
        ([1, 2], [1, 2, 3, 4], 0.5, 0.5),
        ([1, 2, 3, 4, 5, 6], [1, 2, 3, 4], 1.0, 1.0),
        ([], [1, 2], 0.0, 0.0),
        ([], [], 1.0, 1.0),
        ([1], [], 0.0, 0.0),
    ],
)
def test_agreement_of_one_output(output, reference, prefix, equal):
    assert agreement(output, reference) == Agreement(prefix, equal)


def test_mean_gives_every_request_the_same_weight():
    references = {"long": [1, 2, 3, 4], "short": [5]}
    outputs = {"long": [1, 2, 3, 4], "short": [6]}
    assert mean_agreement(outputs, references) == Agreement(0.5, 0.5)


@pytest.mark.parametrize("outputs", [{}, {"a": [1], "b": [1]}, {"b": [1]}])
def test_mean_needs_the_same_requests(outputs):
    with pytest.raises(ValueError, match="same requests"):
        mean_agreement(outputs, {"a": [1]})


def test_mean_needs_a_request():
    with pytest.raises(ValueError, match="at least one"):
        mean_agreement({}, {})
