"""Weights sharded by fully_shard (FSDP2, gloo) are moved as whole ones are; what processes do stands in shards.py."""

import pytest
import ranks
import shards
import torch
from torch import nn

import kronzo
from kronzo import sharded

JOBS = ["train", "bfloat16", "saved", "replay", "checkpointed", "broken", "placements"]


def test_two_ranks_move_their_rows_as_one_process_moves_all(tmp_path):
    ranks.start(2, JOBS, tmp_path, shards.__file__)


@pytest.mark.slow
def test_four_ranks_some_without_rows_and_replicas_of_shards(tmp_path):
    ranks.start(4, ["train", "bfloat16", "saved", "replay", "checkpointed", "replicas"], tmp_path, shards.__file__)


@pytest.mark.parametrize(
    ("mark", "engine"), [("ds_id", "DeepSpeed ZeRO-3"), ("_is_flat_param", "FSDP1"), ("_fsdp_flattened", "FSDP1")]
)
def test_placeholders_of_other_engines_are_refused_by_name(mark, engine):
    placeholder = nn.Parameter(torch.empty(0))
    setattr(placeholder, mark, 3)
    with pytest.raises(kronzo.InputError, match=f"placeholder of {engine}"):
        kronzo.KronZO([nn.Parameter(torch.zeros(3, 3)), placeholder])


def test_plain_weights_are_their_own_rows_and_have_no_group():
    weight = nn.Parameter(torch.zeros(3, 3))
    assert sharded.rows_of(weight) == (weight, 0) and sharded.group_of(weight) is None
    assert not sharded.is_sharded(weight)
