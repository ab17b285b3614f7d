"""The execution trace of an emulated process: its operators with the identity of every tensor, as torch's observer writes them."""

from __future__ import annotations

__all__: tuple[str, ...] = ()
