// Passes over a frozen graph that find which predecessor let each task start, and how late each task may end.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "engine_frozen.hpp"

namespace lumos {

constexpr int64_t UNBOUNDED = std::numeric_limits<int64_t>::max();

// What `find_causes` writes for each task: the predecessor whose end plus lag is the latest (the first of equals), the kind of that
// dependency, and that time; -1, 0 and 0 for a task without predecessors.
struct Causes {
    int32_t* task;
    uint8_t* kind;
    int64_t* ready;
};

// end: [tasks], of a run.
inline void find_causes(const View& g, const Frozen& frozen, const int64_t* end, const Causes& out) {
    for (size_t at = 0; at < frozen.order.size(); ++at) {
        const int32_t task = frozen.order[at];
        const int64_t* lags = g.lags_of_rank(frozen.rank[at]);
        int64_t latest = std::numeric_limits<int64_t>::min(), found = -1;
        for (int64_t e = frozen.pred_offset[at]; e < frozen.pred_offset[at + 1]; ++e) {
            const int64_t time = end[frozen.pred[e]] + lags[frozen.pred_kind[e]];
            if (time > latest) latest = time, found = e;
        }
        out.task[task] = found < 0 ? -1 : frozen.pred[found];
        out.kind[task] = found < 0 ? 0 : frozen.pred_kind[found];
        out.ready[task] = found < 0 ? 0 : latest;
    }
}

// A run of a frozen graph, and the dependencies that are no edges. All columns but `sequence` and `early` are by task.
struct Run {
    const int32_t* sequence;  // positions in `order`, each after all that it waits for; members of a rendezvous are neighbours
    const int32_t* set;       // its rendezvous, -1 without one
    const int32_t* holder;    // the kernel whose SMs it waited for, -1 without one
    const int64_t* early;     // by holder: how long before its end it gave its SMs back
    const int64_t *start, *end;
    const int64_t* began;  // when its own work began: in a rendezvous, at the last arrival
};

// late: by task, in: the time by which it must itself end (UNBOUNDED: no limit); out: the time by which it must end so that its
// successors keep theirs. An edge counts for nothing where the task started earlier in the run than the edge would allow.
inline void bound_ends(const View& g, const Frozen& frozen, const Run& run, int64_t* late) {
    const auto task_of = [&](size_t i) { return frozen.order[run.sequence[i]]; };
    for (size_t stop = frozen.order.size(), first; stop > 0; stop = first) {
        first = stop - 1;  // the first of the tasks that begin together: one task, or all members of a rendezvous
        const int32_t members = run.set[task_of(first)];
        while (members >= 0 && first > 0 && run.set[task_of(first - 1)] == members) --first;
        int64_t begin = UNBOUNDED;
        for (size_t i = first; i < stop; ++i) {
            const int32_t task = task_of(i);
            if (late[task] != UNBOUNDED) begin = std::min(begin, late[task] - (run.end[task] - run.began[task]));
        }
        if (begin == UNBOUNDED) continue;
        for (size_t i = first; i < stop; ++i) {
            const int32_t task = task_of(i), at = run.sequence[i], held_by = run.holder[task];
            const int64_t* lags = g.lags_of_rank(frozen.rank[at]);
            for (int64_t e = frozen.pred_offset[at]; e < frozen.pred_offset[at + 1]; ++e) {
                const int32_t before = frozen.pred[e];
                const int64_t delay = lags[frozen.pred_kind[e]];
                if (run.end[before] + delay <= run.start[task]) late[before] = std::min(late[before], begin - delay);
            }
            if (held_by >= 0) late[held_by] = std::min(late[held_by], begin + run.early[held_by]);
        }
    }
}

}  // namespace lumos
