"""How references and group statistics are written as text fields, and read back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rolloutpipe_core.domain import GroupRef, WeightVersion, parse_group_id

NOT_COMMITTED = "the commit of its round does not hold it"
"""Why a group is rejected that was drawn after Redis had lost what the commit saw."""


def reference_fields(ref: GroupRef, response_tokens: int, longest_response: int) -> list[str]:
    """The announced fields of a group, flat for a script's ARGV (group, round, index, lineage, attempt excluded)."""
    fields: dict[str, Any] = {
        "weight_version": ref.version.number,
        "weights_sha": ref.version.sha,
        "object": ref.object,
        "sha256": ref.sha256,
        "samples": ref.samples,
        "tokens": ref.tokens,
        "response_tokens": response_tokens,
        "longest_response": longest_response,
        "reward_mean": f"{ref.reward_mean:.6g}",
        "reward_std": f"{ref.reward_std:.6g}",
    }
    return [str(part) for pair in fields.items() for part in pair]


def parse_reference(fields: Mapping[str, str]) -> GroupRef:
    """A GroupRef from a FIFO entry or a group's hash. Raises KeyError, ValueError or BadInput on a foreign entry."""
    parse_group_id(fields["group"])  # it becomes part of a key
    return GroupRef(
        group=fields["group"],
        round=int(fields["round"]),
        index=int(fields["index"]),
        lineage=int(fields["lineage"]),
        attempt=int(fields["attempt"]),
        version=WeightVersion(int(fields["weight_version"]), fields["weights_sha"]),
        object=fields["object"],
        sha256=fields["sha256"],
        samples=int(fields["samples"]),
        tokens=int(fields["tokens"]),
        reward_mean=float(fields["reward_mean"]),
        reward_std=float(fields["reward_std"]),
    )
