// A graph whose order on every processor is fixed: every dependency an edge, one topological order, and the sweeps.
#pragma once

#include <algorithm>
#include <cstring>
#include <utility>

#include "engine_graph.hpp"

namespace lumos {

// The sweeps' inner loops vectorise over configurations; gcc picks the widest form the machine has when the module
// loads. (ifunc resolvers run before the sanitizers are ready, so not under them.)
#if defined(__x86_64__) && defined(__linux__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__)
#define LUMOS_WIDEST __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define LUMOS_WIDEST
#endif

struct Frozen {
    std::vector<int32_t> order;
    std::vector<int64_t> pred_offset;
    std::vector<int32_t> pred;
    std::vector<uint8_t> pred_kind;
    // Positions in `order` that need more than the plain rule: a released task (size 1) or the members of a rendezvous.
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
            if (launch >= 0 && g.kind[launch] == KIND_LAUNCH && !g.on_stream(launch)) launched[g.rank(launch)].emplace_back(launch, t);
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
        for (size_t i = depth; i + 1 < first.size(); ++i) {
            const size_t freed = i - depth;
            for (size_t d = first[freed]; d < first[freed + 1]; ++d) {
                bool last = true;
                for (size_t later = d + 1; later < first[freed + 1] && last; ++later)
                    last = g.processor[launched[later].second] != g.processor[launched[d].second];
                if (last || g.skips(STREAM_ORDER)) extra.push_back({launched[first[i]].first, launched[d].second, QUEUE_DEPTH});
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
        out.pred_offset.assign(size_t(g.tasks) + 1, 0);
        const size_t most = size_t(g.pred_offset[g.tasks]) + g.tasks + extra.size();
        out.pred.reserve(most);
        out.pred_kind.reserve(most);
        size_t x = 0;
        each_order_edge([&](int32_t t, int32_t before, uint8_t kind) {
            if (before >= 0) add(before, kind);
            for (int64_t e = g.pred_offset[t]; e < g.pred_offset[t + 1]; ++e)
                if (!g.skips(g.pred_kind[e])) add(g.pred[e], g.pred_kind[e]);
            for (; x < extra.size() && extra[x].task == t; ++x) add(extra[x].pred, extra[x].kind);
            out.pred_offset[t + 1] = int64_t(out.pred.size());
        });
        extra = {};
    }

    void add(int32_t pred, uint8_t kind) {
        out.pred.push_back(pred);
        out.pred_kind.push_back(kind);
    }

    // Depth first from every task in id order, predecessors before successors: a processor's tasks come in long runs,
    // so the sweep walks memory in few streams. The members of a rendezvous are one node: all their predecessors first.
    struct Frame {
        int32_t member;  // task, or first position of a set's member in set_task, negated - 1
        int32_t left;    // members of the set still to look at after this one
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
            stack.push_back({task, 0, out.pred_offset[task]});
            return;
        }
        const int64_t first = g.set_offset[set], stop = g.set_offset[set + 1];
        for (int64_t i = first; i < stop; ++i) state[g.set_task[i]] = OPEN;
        stack.push_back({int32_t(-first - 1), int32_t(stop - first - 1), out.pred_offset[g.set_task[first]]});
    }

    bool advance(const std::vector<bool>& released) {
        Frame& frame = stack.back();
        const int32_t task = task_of(frame);
        for (const int64_t stop = out.pred_offset[task + 1]; frame.edge < stop; ++frame.edge) {
            const int32_t pred = out.pred[frame.edge];
            if (state[pred] == PLACED) continue;
            if (state[pred] == OPEN) return close_cycle(pred), false;
            open(pred);
            return true;
        }
        if (frame.left) {
            --frame.left;
            --frame.member;
            frame.edge = out.pred_offset[task_of(frame)];
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
    }

    void mark(int64_t at, int32_t size) {
        out.special_at.push_back(at);
        out.special_size.push_back(size);
    }

    // The stack from the frame that holds `pred` to the top is the cycle: each waits for the next, the top for `pred`.
    void close_cycle(int32_t pred) {
        const int32_t set = g.sets ? set_of[pred] : -1;
        size_t from = stack.size();
        while (from-- > 0) {
            const int32_t task = task_of(stack[from]);
            if (task == pred || (set >= 0 && set_of[task] == set)) break;
        }
        for (size_t i = from; i < stack.size(); ++i) {
            const int32_t task = task_of(stack[i]);
            const int32_t awaited = out.pred[stack[i].edge];
            out.cycle.tasks.push_back(task);
            out.cycle.kinds.push_back(out.pred_kind[stack[i].edge]);
            const int32_t follows = i + 1 < stack.size() ? task_of(stack[i + 1]) : task_of(stack[from]);
            if (follows == awaited) continue;  // else it awaits a member that runs only with the one whose turn is next
            out.cycle.tasks.push_back(awaited);
            out.cycle.kinds.push_back(RENDEZVOUS);
            if (!out.cycle.missing.empty()) continue;
            for (int64_t m = g.set_offset[set_of[awaited]]; m < g.set_offset[set_of[awaited] + 1]; ++m)
                if (g.set_task[m] != awaited) out.cycle.missing.push_back(g.set_task[m]);
        }
    }
};

struct Sweep {
    const View& g;  // tasks, processor, rank_of, lag, releases
    const int32_t* order;
    const int64_t* pred_offset;
    const int32_t* pred;
    const uint8_t* pred_kind;
    int64_t specials;
    const int64_t* special_at;
    const int32_t* special_size;

    int64_t released(int32_t task) const {
        const int32_t* stop = g.release_task + g.releases;  // ascending
        int64_t latest = UNSET;
        for (const int32_t* r = std::lower_bound(g.release_task, stop, task); r != stop && *r == task; ++r)
            latest = std::max(latest, g.release_time[r - g.release_task]);
        return latest;
    }

    int64_t ready(int32_t task, const int64_t* end) const {
        const int64_t* lag = g.lags(task);
        int64_t e = pred_offset[task];
        const int64_t stop = pred_offset[task + 1];
        int64_t time = UNSET;
        for (; e < stop; ++e) time = std::max(time, end[pred[e]] + lag[pred_kind[e]]);
        return time;
    }

    void one(const int64_t* duration, int64_t* start, int64_t* end) const {
        int64_t at = 0;
        for (int64_t s = 0; s <= specials; ++s) {
            const int64_t stop = s < specials ? special_at[s] : g.tasks;
            for (; at < stop; ++at) {
                const int32_t t = order[at];
                const int64_t time = pred_offset[t] == pred_offset[t + 1] ? 0 : ready(t, end);
                start[t] = time;
                end[t] = time + duration[t];
            }
            if (s == specials) break;
            const int64_t last = at + special_size[s];
            int64_t latest = UNSET;
            for (int64_t i = at; i < last; ++i) {
                const int32_t t = order[i];
                int64_t time = std::max(ready(t, end), released(t));
                if (time == UNSET) time = 0;
                start[t] = time;
                latest = std::max(latest, time);
            }
            for (; at < last; ++at) end[order[at]] = latest + duration[order[at]];
        }
    }
};

// Eight configurations side by side: one cache line a task.
constexpr int LANES = 8;
typedef int64_t Lanes __attribute__((vector_size(LANES * sizeof(int64_t))));

struct Batch {
    const Sweep& sweep;
    const int64_t* duration[LANES];
    Lanes* end;  // [tasks]
    int64_t first[LANES], last[LANES];  // earliest start, latest end

    LUMOS_WIDEST void run();
};

inline LUMOS_WIDEST void Batch::run() {
    const View& g = sweep.g;
    const Lanes unset = Lanes{} + UNSET, zero = {};
    Lanes earliest = Lanes{} + std::numeric_limits<int64_t>::max(), final = unset;
    int64_t at = 0;
    for (int64_t s = 0; s <= sweep.specials; ++s) {
        const int64_t stop = s < sweep.specials ? sweep.special_at[s] : g.tasks;
        const int64_t size = s < sweep.specials ? sweep.special_size[s] : 0;
        Lanes latest = unset;
        for (int64_t i = at; i < stop + size; ++i) {
            const int32_t t = sweep.order[i];
            const int64_t* lag = g.lags(t);
            Lanes time = unset;
            for (int64_t e = sweep.pred_offset[t]; e < sweep.pred_offset[t + 1]; ++e) {
                const Lanes after = end[sweep.pred[e]] + lag[sweep.pred_kind[e]];
                time = after > time ? after : time;
            }
            if (i >= stop) {
                const Lanes release = Lanes{} + sweep.released(t);
                time = release > time ? release : time;
            }
            time = time == unset ? zero : time;
            earliest = time < earliest ? time : earliest;
            if (i >= stop) {
                latest = time > latest ? time : latest;
                continue;
            }
            Lanes own;
            for (int j = 0; j < LANES; ++j) own[j] = duration[j][t];
            time += own;
            final = time > final ? time : final;
            end[t] = time;
        }
        for (int64_t i = stop; i < stop + size; ++i) {
            const int32_t t = sweep.order[i];
            Lanes own;
            for (int j = 0; j < LANES; ++j) own[j] = duration[j][t];
            own += latest;
            final = own > final ? own : final;
            end[t] = own;
        }
        at = stop + size;
    }
    for (int j = 0; j < LANES; ++j) first[j] = earliest[j], last[j] = final[j];
}

}  // namespace lumos
