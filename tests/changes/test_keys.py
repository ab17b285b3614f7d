"""Every key of `--set`, and the one function that answers it on measured blocks."""

import pytest
from tests.changes.layout.test_replicated import job_of

from lumos.changes import structure, whatif
from lumos.changes.changes import Changes
from lumos.changes.settings import SETTINGS, Way, keys_for

#: By key, a value and the module and function that answers it. A new key is one more row.
ANSWERED_BY = {
    "seq": ("8", structure, "resize"),
    "micro_batch": ("32", structure, "resize"),
    "hidden": ("1024", structure, "resize"),
    "heads": ("4", structure, "resize"),
    "ffn": ("1024", structure, "resize"),
    "vocab": ("1024", structure, "resize"),
    "layers": ("4", structure, "layers"),
    "pp": ("2", structure, "recut_as"),
    "vpp": ("2", structure, "recut_as"),
    "first_layers": ("1", structure, "recut_as"),
    "last_layers": ("1", structure, "recut_as"),
    "schedule": ("gpipe", structure, "recut_as"),
    "microbatches": ("4", structure, "microbatches"),
    "dp": ("2", structure, "replicate"),
    "tp": ("2", structure, "tensor_parallel"),
    "cp": ("2", structure, "context_parallel"),
    "ep": ("2", structure, "expert_parallel"),
    "zero": ("3", structure, "sharded"),
    "shard": ("2", structure, "sharded"),
    "precision": ("bf16", structure, "in_precision"),
    "recompute": ("full", structure, "recompute"),
    "cuda_graphs": ("on", whatif, "capture"),
}


class ReachedError(Exception):
    """A function that answers a key was called."""


def test_the_table_has_every_key_that_measured_blocks_answer():
    assert ANSWERED_BY.keys() == set(keys_for(Way.BLOCKS)) == SETTINGS.keys()


@pytest.mark.parametrize("key", ANSWERED_BY)
def test_a_key_is_answered_by_the_function_of_its_row_and_reaches_no_other_before(key, tmp_path, monkeypatch):
    job, graph = job_of(tmp_path, (512, 512), (512, 512))
    for module, name in {row[1:] for row in ANSWERED_BY.values()}:

        def reached(*_args, _name=name, **_words):
            raise ReachedError(_name)

        monkeypatch.setattr(module, name, reached)
    value, _, expected = ANSWERED_BY[key]
    with_stages = {"pp": "2"} if key in ("vpp", "schedule", "first_layers", "last_layers") else {}  # they say how a pipeline runs
    with pytest.raises(ReachedError, match=f"^{expected}$"):
        whatif.unchecked_answer(job, graph, Changes({**with_stages, key: value}))
