"""What an operator of PyTorch is: how the axes of its inputs and results belong together, said once in a table, and what the axes of all
operators of a recording have in common, inferred from it."""


__all__: list[str] = []
