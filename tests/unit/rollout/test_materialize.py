"""K completions and their scores become a group, nothing re-tokenised."""

import numpy as np
import pytest
from rolloutpipe_components.rollout.materialize import GroupIdentity, materialize

from rolloutpipe_core.domain import Completion, FinishReason, VersionSpan, WeightVersion
from rolloutpipe_core.rewards.score import Score

VERSION = WeightVersion(3, "ab" * 32)
IDENTITY = GroupIdentity(run="walk", lineage=1, round=3, index=5, attempt=2, version=VERSION, prompt_id="p-9")


def completion(ids: list[int], finish_reason: FinishReason = FinishReason.STOP) -> Completion:
    return Completion(
        response_ids=np.array(ids, np.int32),
        behavior_logprobs=np.array([-0.25 * id for id in ids], np.float32),
        finish_reason=finish_reason,
        spans=(VersionSpan(VERSION, 0, len(ids)),),
    )


COMPLETIONS = [completion([7, 8, 9]), completion([4], FinishReason.LENGTH)]


def test_a_group_by_hand():
    """Rewards 1 and 0: mean 1/2, std sqrt(1/2); (1 - 1/2) / sqrt(1/2) = sqrt(1/2)."""
    scores = [Score(1.0), Score(0.0, "answered D, not B")]
    group, statistics = materialize(IDENTITY, [5, 6], COMPLETIONS, ["#B", "#D"], scores, "grpo", 0.0)
    facts = (group.run, group.lineage, group.round, group.index, group.attempt, group.version, group.prompt_id)
    assert facts == ("walk", 1, 3, 5, 2, VERSION, "p-9")
    assert group.id == "r000003-g0005"
    first, second = group.samples
    assert (first.reason, second.reason) == (None, "answered D, not B")
    assert (first.index, second.index) == (0, 1)
    for sample, source in zip(group.samples, COMPLETIONS, strict=True):
        assert sample.prompt_ids.tolist() == [5, 6]
        assert sample.response_ids is source.response_ids, "ids go from the engine to the loss as they are"
        assert sample.behavior_logprobs is source.behavior_logprobs
        assert sample.spans == source.spans
        assert sample.loss_mask.tolist() == [1] * len(source.response_ids)
        assert (sample.prompt_ids.dtype, sample.loss_mask.dtype) == (np.int32, np.uint8)
    assert (first.finish_reason, second.finish_reason) == (FinishReason.STOP, FinishReason.LENGTH)
    assert (first.text, second.text) == ("#B", "#D")
    assert (first.reward, second.reward) == (1.0, 0.0)
    assert (first.advantage, second.advantage) == pytest.approx((0.5**0.5, -(0.5**0.5)))
    assert group.tokens == 2 + 3 + 2 + 1
    assert (statistics.mean, statistics.zero_variance) == (0.5, False)


def test_the_loss_chooses_the_advantage():
    scores = [Score(1.0), Score(0.0)]
    group, _ = materialize(IDENTITY, [5], COMPLETIONS, ["", ""], scores, "dr_grpo", 1e-4)
    assert [sample.advantage for sample in group.samples] == [0.5, -0.5]


def test_equal_scores_give_no_advantage():
    group, statistics = materialize(IDENTITY, [5], COMPLETIONS, ["", ""], [Score(0.1), Score(0.1)], "grpo", 1e-4)
    assert statistics.zero_variance
    assert [sample.advantage for sample in group.samples] == [0.0, 0.0]


@pytest.mark.parametrize(("texts", "scores"), [(["a"], [Score(1.0)] * 2), (["a", "b"], [Score(1.0)])])
def test_a_score_or_text_too_few_is_a_defect(texts, scores):
    with pytest.raises(ValueError, match="argument"):
        materialize(IDENTITY, [5], COMPLETIONS, texts, scores, "grpo", 1e-4)
