"""A measured graph cut into layers, phases and microbatches, and the sizes of its model and plan read back."""
