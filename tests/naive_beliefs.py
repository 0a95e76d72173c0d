"""Groups of answers that are all right, as written: one step after the other, nothing summed up.

Imports nothing from the package.
"""

from __future__ import annotations

Pair = tuple[str, str, str]  # a document, one that stands for a group, same, different or unknown


def groups_of(pairs: list[Pair], n_groups: int | None) -> set[frozenset[str]]:
    """Return the groups that certain answers make; documents are asked about one by one.

    `pairs` are those of a dialogue, in its order: the second document has a group already.
    """
    groups: list[set[str]] = []
    for place, (document, member, _) in enumerate(pairs):
        if not groups:
            groups.append({member})
        if place and pairs[place - 1][0] == document:
            continue  # all answers about a document come together
        own = [pair for pair in pairs if pair[0] == document]
        same = {other for _, other, answer in own if answer == "same"}
        excluded = {other for _, other, answer in own if answer == "different"}
        homes = [group for group in groups if group & same]
        left = [group for group in groups if not group & excluded]
        unsure = any(answer == "unknown" for _, _, answer in own)
        if homes:
            homes[0].add(document)
        elif not unsure and not left and len(groups) != n_groups:
            groups.append({document})
        elif not unsure and len(left) == 1 and len(groups) == n_groups:
            left[0].add(document)
    return {frozenset(group) for group in groups}


def posterior(shares: list[float], votes: list[tuple[int, bool]], error_rate: float) -> list[float]:
    """Return how likely each group is: its prior times each answer's probability, if it is so."""
    weights = []
    for group, share in enumerate(shares):
        weight = 0.9 * share + 0.1 / len(shares)
        for asked, is_same in votes:
            weight *= 1.0 - error_rate if (asked == group) == is_same else error_rate
        weights.append(weight)
    return [weight / sum(weights) for weight in weights]
