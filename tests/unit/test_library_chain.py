"""Pieces of a transformers model compute together what the whole model does, wherever it is cut."""

from itertools import pairwise

import pytest
import torch
import transformers

from shardlab import models
from shardlab.models._chain import INPUTS
from shardlab.proof import tiny_config
from shardlab.proof.step_on_ranks import WEIGHTS, one_process
from shardlab.proof.tiny_runs import arrays, tiny_run

CAPPED = {"gemma2": transformers.Gemma2Config, "cohere": transformers.CohereConfig}
"""Models that change what comes out of the head."""


@pytest.fixture(scope="module", params=CAPPED)
def whole(request, tmp_path_factory):
    """Function that makes the model with weights."""
    folder = tmp_path_factory.mktemp(request.param)
    tiny_config.write(CAPPED[request.param](), folder)
    run = tiny_run(folder, "single")
    one_process(run, folder)

    def make():
        model = models.build(run.model, run.task, torch.float64)
        models.weights.materialize(model, folder / WEIGHTS, torch.device("cpu"))
        return model

    return make


@torch.no_grad()
@pytest.mark.parametrize("cuts", [(0, 3, 6), (0, 2, 4, 5, 6), (0, 1, 6)])
def test_pieces_are_the_whole(whole, cuts):
    inputs = torch.as_tensor(arrays()["tokens"][:, :-1]).long()
    state = inputs
    for start, stop in pairwise(cuts):
        piece = whole()
        piece.cut(start, stop)
        state = piece(state, **{INPUTS: inputs})
    torch.testing.assert_close(state, whole()(inputs), rtol=1e-12, atol=0)
