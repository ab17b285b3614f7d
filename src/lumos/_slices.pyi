import numpy as np
from numpy.typing import NDArray

def slices(
    lane: NDArray[np.int32], start: NDArray[np.int64], end: NDArray[np.int64], keep: NDArray[np.uint8]
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int64], NDArray[np.int64]]: ...
