"""What an operator takes on an accelerator with other sizes: attention."""

from __future__ import annotations

from lumos import load_cluster
from lumos.cost.attention import attention
from lumos.segment.dimensions import Sizes
from lumos.segment.products import ShapedOperator
from lumos.whatif.layout.rescale import modelled


def test_the_length_of_an_attention_is_found_by_the_sizes_of_the_model():
    """Four sequences of 512 positions in eight heads, by an operator whose name says that positions come before heads: without sizes its
    name counts, with them the dimension that has the length."""
    accelerator = load_cluster("a100-40gb").accelerator
    shape = (4, 8, 512, 64)
    o = ShapedOperator("aten::_flash_attention_forward", (shape,) * 3, ("c10::BFloat16",) * 3)
    by_name, by_size = modelled(o, accelerator), modelled(o, accelerator, Sizes(micro_batch=4, seq=512, heads=8))
    assert int(by_size.time) == int(attention(4, 512, 8, 64, accelerator, "bf16").time) != int(by_name.time)
