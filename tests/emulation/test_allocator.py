"""PyTorch's caching allocator: sizes, segments, splits and the end of the memory, checked by hand."""

import pytest

from lumos.emulation.process.allocator import CachingAllocator, NoRoomError

MIB, GIB = 1 << 20, 1 << 30


def allocator(memory=GIB, outside=0, expandable=False):
    return CachingAllocator(memory, outside, expandable)


@pytest.mark.parametrize(
    ("size", "block", "segment"),
    [
        (1, 512, 2 * MIB), (MIB, MIB, 2 * MIB), (MIB + 1, MIB + 512, 20 * MIB), (10 * MIB - 512, 10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB, 10 * MIB), (11 * MIB, 12 * MIB, 12 * MIB), (37 * MIB + 1, 38 * MIB, 38 * MIB),
    ],
)  # fmt: skip
def test_sizes_of_blocks_and_segments(size, block, segment):
    """Of 11 MiB the rest of 1 MiB is too small to be split off."""
    found = allocator()
    assert found.take(size, 0).size == block == found.allocated
    assert found.reserved == segment


def test_small_blocks_share_a_segment_and_what_is_given_back_is_lent_again():
    found = allocator()
    one, two, three = (found.take(600, 0) for _ in range(3))
    found.give(one)
    found.give(three)  # joins the rest of the segment
    assert found.take(1024, 0).address == one.address, "the smallest block that is large enough"
    assert found.take(2 * MIB - 2048 - 512, 0).address > two.address
    assert found.reserved == 22 * MIB, "of more than 1 MiB: a large block"
    assert found.statistics()["allocation"]["all"]["current"] == 3
    found.give(found.take(12 * MIB, 0))
    found.take(12 * MIB, 1)
    assert found.reserved == 34 * MIB, "what one stream gave back is not lent to another"


def test_where_the_device_is_full_free_segments_go_back_before_a_request_fails():
    found = allocator(memory=100 * MIB, outside=10 * MIB)
    kept = found.take(40 * MIB, 0)
    found.give(found.take(30 * MIB, 0))
    assert (found.reserved, found.free) == (70 * MIB, 20 * MIB)
    found.take(50 * MIB, 0)  # not in 30, nor in 20 that are left, but in both
    assert (found.reserved, found.statistics()["num_alloc_retries"], found.statistics()["num_ooms"]) == (90 * MIB, 1, 0)
    with pytest.raises(NoRoomError) as failed:
        found.take(512, 0)
    assert str(failed.value).startswith(
        "CUDA out of memory. Tried to allocate 512 bytes. GPU 0 has a total capacity of 100.00 MiB of which 0 bytes is free. Including "
        "non-PyTorch memory, this process has 100.00 MiB memory in use. Of the allocated memory 90.00 MiB is allocated by PyTorch, and 0 "
        "bytes is reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting PYTORCH_ALLOC_CONF="
    )
    found.give(kept)
    assert found.take(40 * MIB, 0).address == kept.address, "whoever catches the error can go on"


def test_a_part_that_is_in_use_keeps_its_segment():
    found = allocator(memory=40 * MIB)
    parts = [found.take(5 * MIB, 0) for _ in range(4)]
    for each in parts[1:]:
        found.give(each)
    found.empty()
    assert (found.allocated, found.reserved) == (5 * MIB, 20 * MIB)
    assert found.statistics()["inactive_split_bytes"]["all"]["current"] == 15 * MIB
    found.give(parts[0])
    found.empty()
    assert found.reserved == found.statistics()["inactive_split_bytes"]["all"]["current"] == 0


def test_an_expandable_segment_grows_and_shrinks_by_pages_and_splits_every_rest():
    found = allocator(memory=100 * MIB, expandable=True)
    one, two = found.take(30 * MIB, 0), found.take(15 * MIB, 0)
    assert (found.allocated, found.reserved, len(found.segments)) == (45 * MIB, 60 * MIB, 1)
    assert two.address == one.address + one.size
    found.give(two)
    found.take(45 * MIB, 0)  # 30 MiB at the end are free: one page more, where a segment of its own would need 46
    assert found.reserved == 80 * MIB
    found.give(one)
    found.empty()
    assert found.reserved == 80 * MIB, "what lies before a block in use stays"
