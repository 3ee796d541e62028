"""The rotation that a model applies to its queries: its table, and proof that it is the right one.

Summaries are built from queries rotated back by their position. A wrong rotation would not crash
anything: demand and scores would be noise. So the table that is found is tried on the real model
before it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from growpage.budget.rope import Rotary
from growpage.engine.errors import UnsupportedError

REMEDY = (
    "which the policies growpage, elastic and entropy and the scores summary and both need; "
    "use --growpage-policy fixed and --growpage-score window"
)


def find_rotary(model: nn.Module, layers: Iterable[str]) -> Rotary:
    """The rotation of all ``layers``, from the ``rotary_emb`` beside each attention layer.

    Raises:
        UnsupportedError: a layer has none that is known, or they differ.
    """
    modules = dict(model.named_modules())
    found: Rotary | None = None
    for layer in layers:
        module = getattr(modules.get(layer.rpartition(".")[0]), "rotary_emb", None)
        rotary = _rotary_of(module)
        if rotary is None:
            what = "no rotary embedding of its own" if module is None else type(module).__name__
            raise UnsupportedError(
                f"layer {layer} has {what}, so growpage cannot tell how it rotates its queries, "
                f"{REMEDY}"
            )
        if found is None:
            found = rotary
        elif found.neox != rotary.neox or not torch.equal(found.cos_sin, rotary.cos_sin):
            raise UnsupportedError(
                f"layer {layer} rotates its queries otherwise than the first, so growpage has "
                f"no one way to rotate them back, {REMEDY}"
            )
    assert found is not None, "a model without attention layers"
    return found


def prove_rotary(
    rotary: Rotary, queries_at: Callable[[int], Tensor], max_positions: int, tolerance: float
) -> None:
    """Make sure that ``rotary`` undoes whatever the position does to the model's queries.

    One token is shown to the model at several positions, one at a time, with attention left out.
    So all that a position can change in any layer's query is what is to be undone, and rotated
    back the queries must be equal. This catches a layer without rotation, a table of another shape
    or meaning, a scale that depends on the position, a norm after the rotation, and a rotation that
    depends on how long the sequence is or has been.

    Args:
        rotary: what was found.
        queries_at: the model's queries ``[layers, heads, dim]`` for a token at a position.
        max_positions: positions that a sequence may reach.
        tolerance: of the difference, as a share of a query's norm.

    Raises:
        UnsupportedError: the queries differ, or the table is too short.
    """
    if len(rotary.cos_sin) < max_positions:
        raise UnsupportedError(
            f"the model's rotary table ends at position {len(rotary.cos_sin)}, before "
            f"--max-model-len {max_positions}; lower --max-model-len"
        )
    last = max_positions - 1
    plain = rotary.unrotate(queries_at(0), torch.tensor([0]))
    # Position 1 once more after the last: a rotation that remembers longer sequences would differ.
    for position in (1, last // 2, last, 1):
        again = rotary.unrotate(queries_at(position), torch.tensor([position]))
        error = (again - plain).norm(dim=-1)
        # Written so that NaN fails.
        for layer, good in enumerate((error <= tolerance * plain.norm(dim=-1)).all(-1).tolist()):
            if not good:
                raise UnsupportedError(
                    f"attention layer {layer} does not rotate its queries as its rotary table says "
                    f"(tried at position {position}), so growpage cannot rotate them back, {REMEDY}"
                )


def _rotary_of(module: nn.Module | None) -> Rotary | None:
    """The table of one of vLLM's rotary embeddings, or none if it is of no known kind."""
    both = getattr(module, "long_short_cos_sin_cache", None)
    if isinstance(both, Tensor):
        # LongRoPE: two tables in one, the choice made once from --max-model-len.
        boundary: int = module.original_max_position_embeddings  # type: ignore[union-attr, assignment]
        long = bool(module.use_long_rope)  # type: ignore[union-attr]
        return Rotary(both[boundary:] if long else both[:boundary])
    table = getattr(module, "cos_sin_cache", None)
    neox = getattr(module, "is_neox_style", None)
    if not isinstance(table, Tensor) or not isinstance(neox, bool):
        return None
    return Rotary(table, neox=neox)
