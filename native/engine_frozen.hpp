// A graph whose order on every processor is fixed: every dependency is an edge, and there is one topological order.
#pragma once

#include <algorithm>
#include <utility>

#include "engine_graph.hpp"

namespace lumos {

// All columns are by position in `order`, so that a sweep reads them from front to back.
struct Frozen {
    std::vector<int32_t> order, rank;
    std::vector<int64_t> pred_offset;
    std::vector<int32_t> pred;  // task ids
    std::vector<uint8_t> pred_kind;
    // The slot in which the batched sweep stores a task's ends as long as later tasks read them: few slots stay in the cache.
    std::vector<int32_t> slot, pred_slot;
    int64_t slots = 0;
    // Positions in `order` that need special treatment: a task with a release time (size 1) or the members of a rendezvous.
    std::vector<int64_t> special_at;
    std::vector<int32_t> special_size;
    Cycle cycle;
};

class Freezer {
  public:
    explicit Freezer(const View& graph) : g(graph) {}

    Frozen run() {
        freeze_waits();
        freeze_queue_depth();
        // Stable, so that the edges of one task stay in the order in which they were found.
        std::stable_sort(extra.begin(), extra.end(), [](const Edge& a, const Edge& b) { return a.task < b.task; });
        merge();
        order();
        offset = {}, pred = {}, pred_kind = {};
        if (out.cycle.empty()) assign_slots();
        return std::move(out);
    }

  private:
    struct Edge {
        int32_t task, pred;
        uint8_t kind;
    };

    const View& g;
    Frozen out;
    std::vector<Edge> extra;
    // All predecessors, by task.
    std::vector<int64_t> offset;
    std::vector<int32_t> pred;
    std::vector<uint8_t> pred_kind;

    // By stream: its tasks in order, and for each the latest launch among those up to it (-1: enqueued from the start).
    struct Issue {
        std::vector<int32_t> tasks, launch;
    };

    std::vector<Issue> issue_order() const {
        std::vector<Issue> issue(g.processors);
        for (int32_t t = 0; t < g.tasks; ++t) {
            if (!g.on_stream(t)) continue;
            Issue& stream = issue[g.processor[t]];
            const int32_t before = stream.launch.empty() ? -1 : stream.launch.back();
            stream.tasks.push_back(t);
            stream.launch.push_back(std::max(before, g.launch(t)));
        }
        return issue;
    }

    void freeze_waits() {
        if (!g.waits) return;
        const std::vector<Issue> issue = issue_order();
        std::vector<std::vector<int32_t>> streams(g.ranks);
        for (int32_t p = 0; p < g.processors; ++p)
            if (g.is_stream[p]) streams[g.rank_of[p]].push_back(p);
        std::vector<int32_t> last(g.processors, -1);
        int64_t w = 0;
        for (int32_t t = 0; t < g.tasks && w < g.waits; ++t) {
            const int32_t proc = g.processor[t];
            const int32_t moment = last[proc] < 0 ? t : last[proc];
            last[proc] = t;
            for (; w < g.waits && g.wait_task[w] == t; ++w) {
                if (g.wait_target[w] >= 0) {
                    await(t, moment, issue[g.wait_target[w]]);
                } else {
                    for (const int32_t p : streams[g.rank(t)]) await(t, moment, issue[p]);
                }
            }
        }
    }

    void await(int32_t task, int32_t moment, const Issue& stream) {
        const auto after = std::lower_bound(stream.launch.begin(), stream.launch.end(), moment);
        if (after != stream.launch.begin()) extra.push_back({task, stream.tasks[after - stream.launch.begin() - 1], SYNC});
    }

    void freeze_queue_depth() {
        bool limits = false;
        for (int32_t r = 0; r < g.ranks; ++r) limits |= g.queue_depth[r] > 0;
        if (!limits || g.skips(LAUNCH)) return;
        // By rank: (launch, device task) by launch; of each launch and stream only the last device task matters.
        std::vector<std::vector<std::pair<int32_t, int32_t>>> launched(g.ranks);
        for (int32_t t = 0; t < g.tasks; ++t) {
            if (!g.on_stream(t)) continue;
            const int32_t launch = g.launch(t);
            if (launch >= 0 && g.is_launch_call(launch)) launched[g.rank(launch)].emplace_back(launch, t);
        }
        for (int32_t r = 0; r < g.ranks; ++r)
            if (g.queue_depth[r] > 0) freeze_queue(launched[r], g.queue_depth[r]);
    }

    void freeze_queue(std::vector<std::pair<int32_t, int32_t>>& launched, int32_t depth) {
        std::sort(launched.begin(), launched.end());
        std::vector<size_t> first;  // of each launch in `launched`
        for (size_t i = 0; i < launched.size(); ++i)
            if (i == 0 || launched[i].first != launched[i - 1].first) first.push_back(i);
        first.push_back(launched.size());
        // The last device task of a launch on each stream; all of them where streams keep no order.
        std::vector<int64_t> closed_by(g.processors, -1);  // latest launch number seen on the stream, from the back
        for (size_t i = depth; i + 1 < first.size(); ++i) {
            const size_t freed = i - depth;
            for (size_t d = first[freed + 1]; d-- > first[freed];) {
                int64_t& closed = closed_by[g.processor[launched[d].second]];
                if (closed == int64_t(freed) && !g.skips(STREAM_ORDER)) continue;
                closed = int64_t(freed);
                extra.push_back({launched[first[i]].first, launched[d].second, QUEUE_DEPTH});
            }
        }
    }

    template <typename Visit>
    void each_order_edge(Visit visit) const {
        std::vector<int32_t> last(g.processors, -1);
        for (int32_t t = 0; t < g.tasks; ++t) {
            const int32_t proc = g.processor[t];
            visit(t, g.keeps_order(proc) ? last[proc] : -1, g.is_stream[proc] ? STREAM_ORDER : THREAD_ORDER);
            last[proc] = t;
        }
    }

    void merge() {
        offset.assign(size_t(g.tasks) + 1, 0);
        const size_t most = size_t(g.pred_offset[g.tasks]) + g.tasks + extra.size();
        pred.reserve(most);
        pred_kind.reserve(most);
        size_t x = 0;
        each_order_edge([&](int32_t t, int32_t before, uint8_t kind) {
            if (before >= 0) add(before, kind);
            for (int64_t e = g.pred_offset[t]; e < g.pred_offset[t + 1]; ++e)
                if (!g.skips(g.pred_kind[e])) add(g.pred[e], g.pred_kind[e]);
            for (; x < extra.size() && extra[x].task == t; ++x) add(extra[x].pred, extra[x].kind);
            offset[t + 1] = int64_t(pred.size());
        });
        extra = {};
    }

    void add(int32_t task, uint8_t kind) {
        pred.push_back(task);
        pred_kind.push_back(kind);
    }

    // Depth first from every task in id order, predecessors before successors. A processor's tasks then come in long runs, so
    // that a sweep reads memory in few streams. The members of a rendezvous are one node: all their predecessors come first.
    struct Frame {
        int32_t member;  // task, or first position of a set's member in set_task, negated - 1
        int32_t left;    // members of the set still to be visited after this one
        int64_t edge;
    };
    enum State : uint8_t { NEW, OPEN, PLACED };

    std::vector<uint8_t> state;
    std::vector<int32_t> set_of;
    std::vector<Frame> stack;

    void order() {
        state.assign(g.tasks, NEW);
        if (g.sets) {
            set_of.assign(g.tasks, -1);
            for (int64_t s = 0; s < g.sets; ++s)
                for (int64_t i = g.set_offset[s]; i < g.set_offset[s + 1]; ++i) set_of[g.set_task[i]] = int32_t(s);
        }
        std::vector<bool> released(g.releases ? g.tasks : 0);
        for (int64_t i = 0; i < g.releases; ++i) released[g.release_task[i]] = true;
        out.order.reserve(g.tasks);
        out.rank.reserve(g.tasks);
        out.pred_offset.reserve(size_t(g.tasks) + 1);
        out.pred_offset.push_back(0);
        out.pred.reserve(pred.size());
        out.pred_kind.reserve(pred.size());
        for (int32_t t = 0; t < g.tasks; ++t) {
            if (state[t] != NEW) continue;
            open(t);
            while (!stack.empty())
                if (!advance(released)) return;
        }
    }

    int32_t task_of(const Frame& frame) const { return frame.member >= 0 ? frame.member : g.set_task[-(frame.member + 1)]; }

    void open(int32_t task) {
        const int32_t set = g.sets ? set_of[task] : -1;
        if (set < 0) {
            state[task] = OPEN;
            stack.push_back({task, 0, offset[task]});
            return;
        }
        const int64_t first = g.set_offset[set], stop = g.set_offset[set + 1];
        for (int64_t i = first; i < stop; ++i) state[g.set_task[i]] = OPEN;
        stack.push_back({int32_t(-first - 1), int32_t(stop - first - 1), offset[g.set_task[first]]});
    }

    bool advance(const std::vector<bool>& released) {
        Frame& frame = stack.back();
        const int32_t task = task_of(frame);
        for (const int64_t stop = offset[task + 1]; frame.edge < stop; ++frame.edge) {
            const int32_t before = pred[frame.edge];
            if (state[before] == PLACED) continue;
            if (state[before] == OPEN) return close_cycle(before), false;
            open(before);
            return true;
        }
        if (frame.left) {
            --frame.left;
            --frame.member;
            frame.edge = offset[task_of(frame)];
            return true;
        }
        place(frame, released);
        stack.pop_back();
        return true;
    }

    void place(const Frame& frame, const std::vector<bool>& released) {
        const int32_t task = task_of(frame);
        const int32_t set = g.sets ? set_of[task] : -1;
        const int64_t at = int64_t(out.order.size());
        if (set < 0) {
            put(task);
            if (g.releases && released[task]) mark(at, 1);
            return;
        }
        for (int64_t i = g.set_offset[set]; i < g.set_offset[set + 1]; ++i) put(g.set_task[i]);
        mark(at, int32_t(g.set_offset[set + 1] - g.set_offset[set]));
    }

    void put(int32_t task) {
        state[task] = PLACED;
        out.order.push_back(task);
        out.rank.push_back(g.rank(task));
        out.pred.insert(out.pred.end(), pred.begin() + offset[task], pred.begin() + offset[task + 1]);
        out.pred_kind.insert(out.pred_kind.end(), pred_kind.begin() + offset[task], pred_kind.begin() + offset[task + 1]);
        out.pred_offset.push_back(int64_t(out.pred.size()));
    }

    void mark(int64_t at, int32_t size) {
        out.special_at.push_back(at);
        out.special_size.push_back(size);
    }

    void assign_slots() {
        const int64_t n = g.tasks;
        std::vector<int32_t> position(n), last_read(n, -1), vacant;
        for (int64_t i = 0; i < n; ++i) position[out.order[i]] = int32_t(i);
        for (int64_t i = 0; i < n; ++i)
            for (int64_t e = out.pred_offset[i]; e < out.pred_offset[i + 1]; ++e) last_read[position[out.pred[e]]] = int32_t(i);
        out.slot.resize(n);
        out.pred_slot.resize(out.pred.size());
        size_t special = 0;
        for (int64_t at = 0, stop; at < n; at = stop) {
            stop = at + 1;  // one task, or all members of a rendezvous, which read their predecessors before any of them writes
            if (special < out.special_at.size() && out.special_at[special] == at) stop = at + out.special_size[special++];
            for (int64_t i = at; i < stop; ++i) {
                if (vacant.empty()) vacant.push_back(int32_t(out.slots++));
                out.slot[i] = vacant.back();
                vacant.pop_back();
            }
            for (int64_t i = at; i < stop; ++i) {
                if (last_read[i] < 0) vacant.push_back(out.slot[i]);
                for (int64_t e = out.pred_offset[i]; e < out.pred_offset[i + 1]; ++e) {
                    const int32_t before = position[out.pred[e]];
                    out.pred_slot[e] = out.slot[before];
                    if (last_read[before] != i) continue;
                    vacant.push_back(out.slot[before]);
                    last_read[before] = int32_t(n);  // the slot is freed only once, although two edges may come from it
                }
            }
        }
    }

    // The stack from the frame that holds `last` to the top is the cycle: each waits for the next, the top for `last`.
    void close_cycle(int32_t last) {
        const int32_t set = g.sets ? set_of[last] : -1;
        size_t from = stack.size();
        while (from-- > 0) {
            const int32_t task = task_of(stack[from]);
            if (task == last || (set >= 0 && set_of[task] == set)) break;
        }
        for (size_t i = from; i < stack.size(); ++i) {
            const int32_t task = task_of(stack[i]);
            const int32_t awaited = pred[stack[i].edge];
            out.cycle.tasks.push_back(task);
            out.cycle.kinds.push_back(pred_kind[stack[i].edge]);
            const int32_t follows = i + 1 < stack.size() ? task_of(stack[i + 1]) : task_of(stack[from]);
            if (follows == awaited) continue;  // else it waits for a member that runs only together with the next on the stack
            out.cycle.tasks.push_back(awaited);
            out.cycle.kinds.push_back(RENDEZVOUS);
            if (!out.cycle.missing.empty()) continue;
            for (int64_t m = g.set_offset[set_of[awaited]]; m < g.set_offset[set_of[awaited] + 1]; ++m)
                if (g.set_task[m] != awaited) out.cycle.missing.push_back(g.set_task[m]);
        }
    }
};

}  // namespace lumos
