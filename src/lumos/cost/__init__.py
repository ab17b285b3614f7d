"""How long work takes that was not measured: accelerators and networks as data, and small fitted models over them."""
