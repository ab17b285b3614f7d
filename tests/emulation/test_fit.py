"""The largest number of a command that fits on a device."""

import pytest
from tests.emulation.emulated_scripts import written

from lumos.emulation.facade import Tried, emulate, filled_in, next_value
from lumos.errors import LumosError, UsageError

#: Takes 4 GiB of the device for each row, and nothing else that counts.
SCRIPT = """
import sys, torch
model = torch.nn.Linear(4, 4).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    held = torch.empty(int(sys.argv[1]) << 30, device="cuda")
    model(torch.ones(2, 4, device="cuda")).sum().backward()
    optimizer.step()
    del held
"""


def answers(fits, room, size):
    """The values that are tried for a device of so much room, as far as `size` of a value says."""
    tried = []
    while (value := next_value("n", tried)) if tried else (value := 1):
        full = size(value) > room
        tried.append(Tried(value, 0 if full else size(value), 0, room, "full" if full else ""))
        assert len(tried) < 40
    assert max(each.value for each in tried if each.fits) == fits
    return [each.value for each in tried]


@pytest.mark.parametrize(
    ("fits", "size"),
    [
        (31, lambda value: 10 + value * value),  # more for each further one: the line reaches too far
        (499, lambda value: 500 + value + min(value, 10) * 0.1),  # less for each further one: not far enough
        (100, lambda value: 100 * (1 + (value - 1) // 10) - (0 if value % 10 else 1)),  # in steps
        (1, lambda value: 999 if value == 1 else 1001),
    ],
)
def test_the_largest_is_found_whatever_memory_does_with_it(fits, size):
    tried = answers(fits, 1000, size)
    assert len(tried) <= 12 and fits + 1 in tried


def test_a_number_that_moves_nothing_and_one_that_never_fits_are_errors():
    with pytest.raises(LumosError, match="1 and 64 take the same memory"):
        answers(0, 1000, lambda value: 100)
    with pytest.raises(LumosError, match="1 does not fit: line 4"):
        next_value("n", [Tried(1, 0, 0, 0, "line 4")])
    with pytest.raises(UsageError, match=r"no \{n\}"):
        filled_in(["python", "{m}"], "n", 3)


TAKEN = 'held = torch.empty(int(sys.argv[1]) << 30, device="cuda")'
SHRINKS = f"try:\n        {TAKEN}\n    except torch.OutOfMemoryError:\n        held = None"


@pytest.mark.parametrize(("taken", "said"), [(TAKEN, "train.py:6: torch.OutOfMemoryError"), (SHRINKS, "train.py:7")])
def test_the_traces_are_of_the_largest_batch_that_fits_and_one_that_shrinks_does_not(tmp_path, taken, said):
    """79.20 GiB less 0.58 GiB of the process: nineteen times 4 GiB fit, twenty do not."""
    pytest.importorskip("torch")
    found = emulate([*written(tmp_path, SCRIPT.replace(TAKEN, taken)), "{rows}"], tmp_path / "out", "h100", fit="rows")
    assert [(each.value, each.fits) for each in found.tried] == [(1, True), (2, True), (19, True), (20, False)]
    assert said in found.tried[-1].reason and len(found.files) == 1
    assert found.memory[0].allocated_bytes == found.tried[2].allocated_bytes > 19 << 32
