from __future__ import annotations

from types import SimpleNamespace

import pytest

from lumos.errors import LumosError
from lumos.segment.counts import _pipeline_stride


def sends(*peers):
    return [SimpleNamespace(peer=peer) for peer in peers]


def test_a_stage_is_as_wide_as_the_nearest_transfer_is_far():
    assert _pipeline_stride([sends(2), sends(3)], [0, 1], 8) == 2
    assert _pipeline_stride([sends(), sends(-1)], [0, 1], 8) == 8


def test_a_message_to_oneself_is_no_transfer_between_stages():
    assert _pipeline_stride([sends(0, 4)], [0], 8) == 4


def test_a_peer_beyond_the_job_is_an_error_that_says_what_to_give():
    with pytest.raises(LumosError, match="rank 5 further on, and 2 ranks are no multiple"):
        _pipeline_stride([sends(5)], [0], 2)
