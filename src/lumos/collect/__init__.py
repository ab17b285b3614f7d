"""What a training script imports to record a trace that Lumos can replay.

    import lumos.collect

    with lumos.collect.profile("out/", steps=3, warmup=2) as p:
        for batch in batches:
            train(batch)
            p.step()

As a callback of a framework: `lumos.collect.lightning("out/")`, `lumos.collect.hugging_face("out/")`. Before any other loop:
`lumos.collect.on_optimizer_steps("out/")`. Without changing the script: `lumos.collect.run(["torchrun", …, "train.py"], "out/")`, or
`lumos collect -- torchrun … train.py`, which `lumos.collect.step()` tells where a step ends, if that is not an optimizer's step.

This package imports nothing of Lumos but its errors, so that it can be dropped into any training environment. torch is
imported when a recording starts, not before.
"""

from __future__ import annotations

from lumos.collect.callbacks import hugging_face, lightning
from lumos.collect.command import Recorded, run
from lumos.collect.hook import on_optimizer_steps, step
from lumos.collect.window import Recording, profile

__all__ = ["Recorded", "Recording", "hugging_face", "lightning", "on_optimizer_steps", "profile", "run", "step"]
