"""Jobs drawn by hand as profiler files, small enough to work out what each of their parts costs."""

import pytest
from tests.drawn_rank import DrawnRank


@pytest.fixture
def job(tmp_path):
    """Write ranks as profiler files, and give the folder."""

    def write(*ranks):
        folder = tmp_path / "job"
        folder.mkdir(exist_ok=True)
        for number, rank in enumerate(ranks):
            world = {"rank": number, "world_size": len(ranks)}
            rank.write(folder / f"rank{number}.json", distributedInfo=world, lumos_host=rank.host)
        return folder

    return write


@pytest.fixture
def gpu():
    """One rank of steps of 1000 µs, in which 60 operators launch a kernel each, every 10 µs; the thread then waits for the device.

    time: of a kernel, µs. The first starts 6 µs after its step, the others every 10 µs, or 0.5 µs after the one before. name: of kernel i
    of a step.
    """

    def draw(steps=5, time=16, name=lambda i: "gemm_kernel"):
        rank = DrawnRank()
        for step in range(steps):
            zero = free = 1000 * step
            rank.step(step, zero, 1000)
            for i in range(60):
                rank.operator("aten::mm", zero + 10 * i, 10)
                begin = max(zero + 10 * i + 6, free + 0.5)
                rank.call("cudaLaunchKernel", zero + 10 * i + 2, 2, (name(i), begin, time))
                free = begin + time
            rank.call("cudaDeviceSynchronize", zero + 600, free + 2 - zero - 600)
        return rank

    return draw


@pytest.fixture
def cpu():
    """Ranks without a device, of five steps, from the operators of each: (name, µs) or (name, µs, args); the loader's is a range.

    They follow one another from the begin of the step; when the last rank is done, all meet in an all-reduce of gloo of `meet` µs.
    """

    def draw(*ranks, steps=5, meet=10):
        longest = max(sum(each[1] for each in one) for one in ranks)
        return [_cpu_rank(one, longest, steps, meet) for one in ranks]

    return draw


def _cpu_rank(works, longest, steps, meet):
    rank, period = DrawnRank(), longest + meet + 40
    for step in range(steps):
        now = zero = step * period
        rank.step(step, zero, period)
        for name, time, *more in works:
            if name.startswith("enumerate"):
                rank.range(name, now, time)
            else:
                rank.operator(name, now, time, **(more[0] if more else {}))
            now += time
        shapes = {"Input Dims": [[64]], "Input type": ["float"]}
        rank.operator("c10d::allreduce_", now, 10, **shapes)
        rank.collective("gloo:all_reduce", now + 10, zero + longest + meet - now, **shapes)
        rank.operator("aten::add_", zero + longest + meet + 15, 25)
    return rank
