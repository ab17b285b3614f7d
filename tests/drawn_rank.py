"""A profiler's file of one rank, drawn row by row."""

import json


class DrawnRank:
    """The rows of one rank: what its thread and its streams do, in µs."""

    def __init__(self):
        self.rows, self.host = [], []

    def step(self, number, start, duration):
        self._row("user_annotation", f"ProfilerStep#{number}", start, duration)

    def operator(self, name, start, duration, thread=1, **args):
        self._row("cpu_op", name, start, duration, args=args, lane=(1, thread))

    def launching(self, name, start, duration, kernel, thread=1, **args):
        """An operator and, from 1 to 4 µs in it, the call that launches a kernel. args: of the operator."""
        ids = {"External id": len(self.rows) + 1}
        self.operator(name, start, duration, thread, **ids, **args)
        self.call("cudaLaunchKernel", start + 1, 3, kernel, thread=thread, **ids)

    def range(self, name, start, duration):
        self._row("user_annotation", name, start, duration)

    def collective(self, name, start, duration, **args):
        """A collective that a thread of its own carries out."""
        self._row("user_annotation", name, start, duration, args=args, lane=(1, 2))

    def call(self, name, start, duration, kernel=None, stream=7, thread=1, **args):
        """A runtime call and, if it launches any, its kernel: (name, start, duration). args: of both."""
        args["correlation"] = len(self.rows) + 1
        self._row("cuda_runtime", name, start, duration, args=args, lane=(1, thread))
        if kernel:
            self._row("kernel", *kernel, args={**args, "device": 0, "stream": stream}, lane=(0, stream))

    def write(self, path, **header):
        """The file. header: what stands beside the rows."""
        path.write_text(json.dumps({"schemaVersion": 1, **header, "traceEvents": self.rows}))
        return path

    def _row(self, category, name, start, duration, args=None, lane=(1, 1)):
        row = {"ph": "X", "cat": category, "name": name, "pid": lane[0], "tid": lane[1], "ts": start, "dur": duration}
        self.rows.append({**row, "args": args} if args else row)
