"""Which tokens survive an eviction, given their scores."""

from __future__ import annotations

import torch
from torch import Tensor

from growpage.compiled import loops


def select_survivors(
    scores: Tensor,
    keep: int,
    *,
    prefix: int,
    recent: int,
    page: int,
    local_quota: int = 0,
) -> Tensor:
    """The ``keep`` tokens to hold on to, for each row on its own.

    Always kept are the first ``prefix`` tokens (the sinks, or the whole prompt) and the last
    ``recent``; then the best ``local_quota`` tokens of each page (the paper's ``k_loc``), so that a
    global top-k cannot wipe out a region; then the best of the rest. A quota that does not fit in
    ``keep`` is lowered to the largest that does.

    Args:
        scores: ``[..., tokens]``.
        keep: survivors, at most ``tokens``.
        prefix: tokens kept at the start.
        recent: tokens kept at the end.
        page: tokens in a page; the last page may be partly filled.
        local_quota: tokens kept of each page.

    Returns:
        ``[..., keep]`` token indices in ascending order.

    Raises:
        ValueError: the prefix and the recent tokens alone exceed ``keep``.
    """
    tokens = scores.shape[-1]
    quota = fitting_quota(
        tokens, keep, prefix=prefix, recent=recent, page=page, local_quota=local_quota
    )
    compiled = loops() if scores.device.type == "cpu" else None
    if compiled is not None:
        rows = scores.float().reshape(-1, tokens).contiguous()
        kept = torch.empty(*scores.shape[:-1], keep, dtype=torch.long)
        fixed = prefix, min(recent, tokens), page, quota
        compiled("select_rows", rows, len(rows), tokens, keep, *fixed, kept)
        return kept
    return select_by_sorting(scores, keep, prefix, min(recent, tokens), page, quota)


def fitting_quota(
    tokens: int, keep: int, *, prefix: int, recent: int, page: int, local_quota: int
) -> int:
    """The largest quota up to ``local_quota`` that fits in ``keep``.

    Arguments and errors are those of :func:`select_survivors`.
    """
    always = min(prefix + recent, tokens)
    if not always <= keep <= tokens:
        raise ValueError(
            f"cannot keep {keep} of {tokens} tokens with the first {prefix} and last {recent} fixed"
        )
    free = [
        max(min(start + page, tokens - recent) - max(start, prefix), 0)
        for start in range(0, tokens, page)
    ]
    quota = min(local_quota, page)
    while sum(min(quota, each) for each in free) > keep - always:
        quota -= 1
    return quota


def select_by_sorting(
    scores: Tensor, keep: int, prefix: int, recent: int, page: int, quota: int
) -> Tensor:
    """:func:`select_survivors` on any device, with a ``quota`` that fits."""
    tokens = scores.shape[-1]
    pages = -(-tokens // page)
    top = torch.finfo(torch.float32).max
    # Bounded: below the two ranks that are forced, above the padding, and never NaN.
    rank = scores.to(torch.float32, copy=True).nan_to_num_(nan=-top).clamp_(-top / 4, top / 4)
    if quota > 0:
        padded = torch.nn.functional.pad(rank, (0, pages * page - tokens), value=-top)
        best = padded.unflatten(-1, (pages, page)).topk(quota, dim=-1).indices
        offset = torch.arange(pages, device=best.device).unsqueeze(-1) * page
        # The last page may hold fewer tokens than the quota; its padding is clamped to a real one.
        rank.scatter_(-1, (best + offset).flatten(-2).clamp_(max=tokens - 1), top / 2)
    rank[..., :prefix] = top
    rank[..., tokens - recent :] = top
    return rank.topk(keep, dim=-1).indices.sort(dim=-1).values
