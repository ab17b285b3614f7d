// The state of the event loop: what it knows of the tasks, streams, devices and ranks of a graph, and how that is initialised.
//
// One counter per task says for how many things it still waits. Until a task starts, `start` holds the time at which it is ready,
// and until it ends, `end` holds the numbers of its tables.
#pragma once

#include <algorithm>
#include <deque>
#include <utility>

#include "engine_graph.hpp"

namespace lumos {

struct LoopState {
    LoopState(const View& graph, const int64_t* duration, int64_t* start, int64_t* end)
        : g(graph), duration(duration), start(start), end(end) {
        index_processors();
        index_successors();
        mark_tables();
    }

    enum Flag : uint16_t {
        SNAPSHOTS = 1,        // at its start, what the return after it on its thread waits for is determined
        LIMITED = 2,          // a launch of a rank with a queue depth
        SHARES = 4,           // a kernel that takes SMs
        MEMBER = 8,           // of a rendezvous
        SNAPSHOTS_SELF = 16,  // a waiting return that is first on its thread
        ORPHAN = 32,          // device task without launch
        ENQUEUED = 64,
        ARRIVED = 128,  // a member that waits for the others
        GRANTED = 256,  // a blocked launch that got its place
        DONE = 512,
        STARTS = SNAPSHOTS | LIMITED | SHARES | SNAPSHOTS_SELF,
    };

    struct Stream {
        int64_t first = 0, head = 0, tail = 0;  // into `queue`
        int64_t last_end = UNSET;
        bool open = false;                                 // the head may run: its predecessor has ended
        std::vector<std::pair<int32_t, int32_t>> waiters;  // (device task, return)
    };
    struct Device {
        int64_t held = 0;
        std::deque<int32_t> blocked;
    };
    struct Rank {
        int64_t outstanding = 0;
        std::deque<int32_t> blocked;
        std::vector<int32_t> streams;
    };
    struct Set {
        int32_t absent = 0;
        int64_t latest = UNSET;
    };

    // Shares are integers in parts of 1e9, so that they add up exactly. A device is full within 1e-6 of 1, which allows for the
    // rounding of shares that are fractions of SMs.
    static constexpr double SHARE_UNIT = 1e9;
    static constexpr int64_t FULL = 1'000'000'000 - 1'000;

    const View& g;
    const int64_t* duration;
    int64_t *start, *end;
    std::vector<int32_t> remaining, next;
    std::vector<uint16_t> flags;
    std::vector<uint32_t> succ_offset;
    std::vector<int32_t> succ;
    std::vector<uint8_t> succ_kind;
    std::vector<int32_t> queue;
    std::vector<Stream> streams;  // by processor
    std::vector<int64_t> held;    // by processor
    std::vector<Device> devices;
    std::vector<Rank> ranks;
    std::vector<Set> sets;
    bool limits = false;  // some rank has a queue depth

    // The rendezvous of a task, and its first wait or its occupancy: what `end` holds until the task ends.
    int64_t set_of(int32_t task) const { return end[task] & 0xffffffff; }
    int64_t table_row(int32_t task) const { return end[task] >> 32; }

    int32_t device_tasks(int32_t launch) const {
        int32_t count = 0;
        for (uint32_t e = succ_offset[launch]; e < succ_offset[launch + 1]; ++e) count += succ_kind[e] == LAUNCH && g.on_stream(succ[e]);
        return count;
    }

  private:
    void index_processors() {
        const int32_t n = g.tasks, p = g.processors;
        next.assign(n, -1);
        remaining.assign(n, 0);
        flags.assign(n, 0);
        streams.resize(p);
        held.assign(p, 0);
        devices.resize(g.devices);
        ranks.resize(g.ranks);
        std::vector<int32_t> last(p, -1);
        std::vector<int64_t> count(p, 0);
        for (int32_t t = 0; t < n; ++t) {
            const int32_t proc = g.processor[t];
            const bool first = last[proc] < 0;
            if (!first) next[last[proc]] = t;
            last[proc] = t;
            if (g.is_stream[proc]) ++count[proc];
            // The task before it on the stream counts as one thing to wait for; for the first task, that it is enqueued.
            if (g.keeps_order(proc)) remaining[t] = g.is_stream[proc] || !first;
            start[t] = first || !g.keeps_order(proc) ? 0 : UNSET;
            end[t] = 0;
        }
        int64_t total = 0;
        for (int32_t s = 0; s < p; ++s) {
            streams[s].first = streams[s].head = streams[s].tail = total;
            total += count[s];
            if (g.is_stream[s]) ranks[g.rank_of[s]].streams.push_back(s);
        }
        queue.resize(total);
    }

    void index_successors() {
        const int32_t n = g.tasks;
        succ_offset.assign(size_t(n) + 1, 0);
        for (int32_t t = 0; t < n; ++t) {
            bool orphan = true;
            for (int64_t e = g.pred_offset[t]; e < g.pred_offset[t + 1]; ++e) {
                if (g.skips(g.pred_kind[e])) continue;
                ++succ_offset[g.pred[e]];
                ++remaining[t];
                start[t] = UNSET;
                orphan &= g.pred_kind[e] != LAUNCH;
            }
            if (orphan && g.on_stream(t)) flags[t] |= ORPHAN;
        }
        uint32_t total = 0;
        for (int32_t t = 0; t <= n; ++t) total += std::exchange(succ_offset[t], total);
        succ.resize(total);
        succ_kind.resize(total);
        for (int32_t t = 0; t < n; ++t)
            for (int64_t e = g.pred_offset[t]; e < g.pred_offset[t + 1]; ++e) {
                if (g.skips(g.pred_kind[e])) continue;
                const uint32_t at = succ_offset[g.pred[e]]++;
                succ[at] = t;
                succ_kind[at] = g.pred_kind[e];
            }
        for (int32_t t = n; t > 0; --t) succ_offset[t] = succ_offset[t - 1];  // undo the advance of the fill
        succ_offset[0] = 0;
    }

    void mark_tables() {
        // A release time replaces "ready at 0", so that times before 0 are possible.
        std::vector<std::pair<int32_t, int64_t>> released;
        for (int64_t i = 0; i < g.releases; ++i) released.emplace_back(g.release_task[i], g.release_time[i]);
        std::sort(released.begin(), released.end());
        for (const auto& [task, time] : released) start[task] = time;  // the largest of a task comes last
        sets.resize(g.sets);
        for (int64_t s = 0; s < g.sets; ++s) {
            sets[s].absent = int32_t(g.set_offset[s + 1] - g.set_offset[s]);
            for (int64_t i = g.set_offset[s]; i < g.set_offset[s + 1]; ++i) {
                flags[g.set_task[i]] |= MEMBER;
                end[g.set_task[i]] |= s;
            }
        }
        for (int64_t i = 0; i < g.occupancies; ++i) {
            flags[g.occupancy_task[i]] |= SHARES;
            end[g.occupancy_task[i]] |= i << 32;
        }
        mark_waits();
        for (int32_t r = 0; r < g.ranks; ++r) limits |= g.queue_depth[r] > 0;
        if (!limits || g.skips(LAUNCH)) return;
        for (int32_t t = 0; t < g.tasks; ++t)
            if (g.is_launch_call(t) && g.queue_depth[g.rank(t)] > 0 && device_tasks(t)) flags[t] |= LIMITED;
    }

    void mark_waits() {
        for (int64_t i = 0; i < g.waits; ++i) {
            const int32_t t = g.wait_task[i];
            end[t] |= i << 32;
            while (i + 1 < g.waits && g.wait_task[i + 1] == t) ++i;
            flags[t] |= SNAPSHOTS_SELF;
        }
        if (!g.waits) return;
        for (int32_t t = 0; t < g.tasks; ++t)
            if (const int32_t after = next[t]; after >= 0 && flags[after] & SNAPSHOTS_SELF) {
                flags[after] &= ~SNAPSHOTS_SELF;
                flags[t] |= SNAPSHOTS;
                ++remaining[after];  // the snapshot itself
            }
    }
};

}  // namespace lumos
