// The event loop: starts and ends of tasks in the order of (time, task id, phase).
//
// Most tasks cost one event, their end. Only those whose start changes what others see (a call that a return's snapshot
// hangs on, a launch that takes a place in the queue, a kernel that takes SMs) have an event for their start as well.
// What a task waits for is one counter; `start` holds its readiness until it starts, `end` the numbers of its tables.
#pragma once

#include <algorithm>
#include <cmath>
#include <deque>
#include <utility>

#include "engine_graph.hpp"
#include "engine_queue.hpp"

namespace lumos {

class Loop {
  public:
    Loop(const View& graph, const int64_t* duration, int64_t* start, int64_t* end) : g(graph), duration(duration), start(start), end(end) {
        index_processors();
        index_successors();
        mark_tables();
    }

    Cycle run() {
        enter();
        EventQueue::Event event;
        while (events.pop(event)) {
            switch (event.phase) {
                case EventQueue::START: try_start(event.task, event.time); break;
                case EventQueue::END: finish(event.task, event.time); break;
                case EventQueue::RELEASE: give_back(event.task, event.index, event.time); break;
                case EventQueue::VACATE: vacate(event.task, event.time); break;
            }
        }
        return done == g.tasks ? Cycle{} : find_cycle();
    }

  private:
    enum Flag : uint16_t {
        SNAPSHOTS = 1,        // the return behind it on its thread looks at the streams when this starts
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

    // Shares in parts of 1e9 add up exactly; full is 1 within 1e-6, the rounding of shares that are fractions of SMs.
    static constexpr double SHARE_UNIT = 1e9;
    static constexpr int64_t FULL = 1'000'000'000 - 1'000;

    const View& g;
    const int64_t* duration;
    int64_t *start, *end;
    EventQueue events;
    int64_t done = 0;
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
    bool limits = false, shares = false;

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
            // A stream's head counts as one thing to wait for, also for the first task: it must be enqueued.
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
        // A first release replaces "ready at 0" of a task without predecessors, so that earlier times are possible.
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
        shares = g.occupancies > 0;
        for (int64_t i = 0; i < g.occupancies; ++i) {
            flags[g.occupancy_task[i]] |= SHARES;
            end[g.occupancy_task[i]] |= i << 32;
        }
        mark_waits();
        for (int32_t r = 0; r < g.ranks; ++r) limits |= g.queue_depth[r] > 0;
        if (!limits || g.skips(LAUNCH)) return;
        for (int32_t t = 0; t < g.tasks; ++t)
            if (g.kind[t] == KIND_LAUNCH && !g.on_stream(t) && g.queue_depth[g.rank(t)] > 0 && device_tasks(t)) flags[t] |= LIMITED;
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

    int32_t device_tasks(int32_t launch) const {
        int32_t count = 0;
        for (uint32_t e = succ_offset[launch]; e < succ_offset[launch + 1]; ++e) count += succ_kind[e] == LAUNCH && g.on_stream(succ[e]);
        return count;
    }

    void enter() {
        for (int32_t t = 0; t < g.tasks; ++t)
            if (remaining[t] == 0) begin(t);
        std::vector<uint8_t> seen(g.processors, 0);
        for (int32_t t = 0; t < g.tasks; ++t)
            if (!std::exchange(seen[g.processor[t]], 1) && flags[t] & ORPHAN) enqueue(t);
    }

    void satisfy(int32_t task, int64_t time) {
        if (time > start[task]) start[task] = time;
        if (--remaining[task] == 0) begin(task);
    }

    // Nothing is left to wait for but what is seen at the start itself.
    void begin(int32_t task) {
        if (flags[task] & STARTS)
            events.push(start[task], task, EventQueue::START);
        else
            execute(task, start[task]);
    }

    void try_start(int32_t task, int64_t now) {
        const uint16_t flag = flags[task];
        if (flag & SNAPSHOTS_SELF) {
            flags[task] &= ~SNAPSHOTS_SELF;
            ++remaining[task];
            snapshot(task, now);
            satisfy(task, now);
            return;
        }
        if (flag & LIMITED && !(flag & GRANTED)) {
            Rank& rank = ranks[g.rank(task)];
            if (rank.outstanding >= g.queue_depth[g.rank(task)]) {
                rank.blocked.push_back(task);
                return;
            }
            ++rank.outstanding;
        }
        if (flag & SHARES && !fits(task)) {
            devices[g.device_of[g.processor[task]]].blocked.push_back(task);
            return;
        }
        execute(task, now);
    }

    void execute(int32_t task, int64_t now) {
        start[task] = now;
        const uint16_t flag = flags[task];
        if (flag & SNAPSHOTS) {
            snapshot(next[task], now);
            satisfy(next[task], now);
        }
        if (flag & LIMITED) remaining[task] = device_tasks(task);
        if (flag & SHARES) take(task);
        if (flag & MEMBER)
            arrive(task, now);
        else
            complete(task, now);
    }

    void complete(int32_t task, int64_t transfer) {
        if (flags[task] & SHARES) {
            const int64_t index = end[task] >> 32;
            const int64_t base = g.duration[task];
            __extension__ using Wide = __int128;
            const int64_t hold = base ? int64_t(Wide(g.occupancy_hold[index]) * duration[task] / base) : 0;
            events.push(transfer + hold, task, EventQueue::RELEASE, uint32_t(index));
        }
        end[task] = transfer + duration[task];
        events.push(end[task], task, EventQueue::END);
    }

    void arrive(int32_t task, int64_t now) {
        flags[task] |= ARRIVED;
        const int64_t at = end[task] & 0xffffffff;
        Set& set = sets[at];
        set.latest = std::max(set.latest, now);
        if (--set.absent) return;
        for (int64_t i = g.set_offset[at]; i < g.set_offset[at + 1]; ++i) complete(g.set_task[i], set.latest);
    }

    void finish(int32_t task, int64_t now) {
        flags[task] |= DONE;
        ++done;
        for (uint32_t e = succ_offset[task], stop = succ_offset[task + 1]; e < stop; ++e) {
            const int32_t s = succ[e];
            satisfy(s, now + g.lags(s)[succ_kind[e]]);
            if (succ_kind[e] == LAUNCH && g.on_stream(s)) enqueue(s);
        }
        const int32_t proc = g.processor[task];
        if (g.is_stream[proc]) {
            finish_on_stream(task, proc, now);
        } else if (next[task] >= 0 && !g.skips(THREAD_ORDER)) {
            satisfy(next[task], now + g.lag[int64_t(g.rank_of[proc]) * DEPENDENCIES + THREAD_ORDER]);
        }
    }

    void finish_on_stream(int32_t task, int32_t proc, int64_t now) {
        Stream& stream = streams[proc];
        if (!g.skips(STREAM_ORDER)) {
            stream.last_end = now;
            stream.open = false;
            ++stream.head;
            open_head(proc);
        }
        if (!stream.waiters.empty()) wake(task, stream, now);
        if (!limits) return;
        const int32_t launch = g.launch(task);
        if (launch < 0 || !(flags[launch] & LIMITED) || --remaining[launch]) return;
        const int64_t lag = g.lags(launch)[QUEUE_DEPTH];
        if (lag)
            events.push(now + lag, launch, EventQueue::VACATE);
        else
            vacate(launch, now);
    }

    void enqueue(int32_t task) {
        const int32_t proc = g.processor[task];
        Stream& stream = streams[proc];
        do {
            flags[task] |= ENQUEUED;
            queue[stream.tail++] = task;
            task = next[task];
        } while (task >= 0 && flags[task] & ORPHAN);
        if (!g.skips(STREAM_ORDER) && !stream.open) open_head(proc);
    }

    void open_head(int32_t proc) {
        Stream& stream = streams[proc];
        if (stream.head == stream.tail) return;
        stream.open = true;
        const bool first = stream.head == stream.first;
        satisfy(queue[stream.head], first ? UNSET : stream.last_end + g.lag[int64_t(g.rank_of[proc]) * DEPENDENCIES + STREAM_ORDER]);
    }

    void snapshot(int32_t task, int64_t now) {
        start[task] = std::max(start[task], now);
        for (int64_t i = end[task] >> 32; i < g.waits && g.wait_task[i] == task; ++i) {
            if (g.wait_target[i] >= 0) {
                await(task, g.wait_target[i]);
            } else {
                for (const int32_t proc : ranks[g.rank(task)].streams) await(task, proc);
            }
        }
    }

    void await(int32_t task, int32_t proc) {
        Stream& stream = streams[proc];
        if (stream.tail == stream.first) return;
        const int32_t last = queue[stream.tail - 1];
        if (flags[last] & DONE) {
            start[task] = std::max(start[task], end[last] + g.lags(task)[SYNC]);
        } else {
            stream.waiters.emplace_back(last, task);
            ++remaining[task];
        }
    }

    void wake(int32_t task, Stream& stream, int64_t now) {
        auto& waiters = stream.waiters;
        size_t kept = 0;
        for (size_t i = 0; i < waiters.size(); ++i) {
            if (waiters[i].first == task)
                satisfy(waiters[i].second, now + g.lags(waiters[i].second)[SYNC]);
            else
                waiters[kept++] = waiters[i];
        }
        waiters.resize(kept);
    }

    // A launch's last device task has ended: its place goes to whoever is first in line.
    void vacate(int32_t launch, int64_t now) {
        Rank& rank = ranks[g.rank(launch)];
        if (rank.blocked.empty()) {
            --rank.outstanding;
            return;
        }
        const int32_t heir = rank.blocked.front();
        rank.blocked.pop_front();
        flags[heir] |= GRANTED;
        events.push(now, heir, EventQueue::START);
    }

    int64_t share(int64_t index) const { return std::llround(double(g.occupancy_share[index]) * SHARE_UNIT); }

    bool fits(int32_t task) const {
        const int32_t proc = g.processor[task];
        return devices[g.device_of[proc]].held - held[proc] < FULL;
    }

    void take(int32_t task) {
        const int32_t proc = g.processor[task];
        const int64_t part = share(end[task] >> 32);
        devices[g.device_of[proc]].held += part;
        held[proc] += part;
    }

    void give_back(int32_t task, uint32_t index, int64_t now) {
        const int32_t proc = g.processor[task];
        Device& device = devices[g.device_of[proc]];
        const int64_t part = share(index);
        device.held -= part;
        held[proc] -= part;
        std::deque<int32_t> blocked;
        blocked.swap(device.blocked);
        for (const int32_t kernel : blocked) {
            if (fits(kernel))
                execute(kernel, now);
            else
                device.blocked.push_back(kernel);
        }
    }

    // ---- what went wrong ----

    struct Blocker {
        int32_t task;
        uint8_t kind;
    };

    Cycle find_cycle() const {
        std::vector<int32_t> previous(g.tasks, -1);
        for (int32_t t = 0; t < g.tasks; ++t)
            if (next[t] >= 0) previous[next[t]] = t;
        int32_t task = 0;
        while (flags[task] & DONE) ++task;
        std::vector<int32_t> step(g.tasks, -1);
        Cycle walk;
        while (task >= 0 && step[task] < 0) {
            step[task] = int32_t(walk.tasks.size());
            const Blocker blocker = blocker_of(task, previous);
            walk.tasks.push_back(task);
            walk.kinds.push_back(blocker.kind);
            task = blocker.task;
        }
        if (task >= 0) {
            walk.tasks.erase(walk.tasks.begin(), walk.tasks.begin() + step[task]);
            walk.kinds.erase(walk.kinds.begin(), walk.kinds.begin() + step[task]);
        }
        for (size_t i = 0; i < walk.tasks.size() && walk.missing.empty(); ++i)
            if (walk.kinds[i] == RENDEZVOUS) {
                const int64_t set = end[walk.tasks[i]] & 0xffffffff;
                for (int64_t m = g.set_offset[set]; m < g.set_offset[set + 1]; ++m)
                    if (!(flags[g.set_task[m]] & ARRIVED)) walk.missing.push_back(g.set_task[m]);
            }
        return walk;
    }

    Blocker blocker_of(int32_t task, const std::vector<int32_t>& previous) const {
        if (flags[task] & ARRIVED) {
            const int64_t set = end[task] & 0xffffffff;
            for (int64_t m = g.set_offset[set]; m < g.set_offset[set + 1]; ++m)
                if (!(flags[g.set_task[m]] & ARRIVED)) return {g.set_task[m], RENDEZVOUS};
        }
        for (int64_t e = g.pred_offset[task]; e < g.pred_offset[task + 1]; ++e)
            if (!g.skips(g.pred_kind[e]) && !(flags[g.pred[e]] & DONE)) return {g.pred[e], g.pred_kind[e]};
        const int32_t proc = g.processor[task];
        const int32_t before = previous[task];
        if (!g.is_stream[proc]) {
            if (before >= 0 && !(flags[before] & DONE) && !g.skips(THREAD_ORDER)) return {before, THREAD_ORDER};
            for (const Stream& stream : streams)
                for (const auto& [awaited, waiter] : stream.waiters)
                    if (waiter == task) return {awaited, SYNC};
            if (before >= 0 && !(flags[before] & DONE)) return {before, SYNC};  // its start takes the snapshot
            return {of_rank(g.rank(task)), QUEUE_DEPTH};
        }
        if (!(flags[task] & ENQUEUED)) return {before, STREAM_ORDER};
        const Stream& stream = streams[proc];
        if (!g.skips(STREAM_ORDER) && queue[stream.head] != task) return {queue[stream.head], STREAM_ORDER};
        for (const int32_t other : ranks[g.rank(task)].streams) {
            const Stream& holder = streams[other];
            if (other != proc && held[other] && holder.head < holder.tail) return {queue[holder.head], OCCUPANCY};
        }
        return {-1, OCCUPANCY};
    }

    // An unfinished head of a stream of the rank: one of those that keep the queue full.
    int32_t of_rank(int32_t rank) const {
        for (const int32_t proc : ranks[rank].streams)
            for (int64_t i = streams[proc].head; i < streams[proc].tail; ++i)
                if (!(flags[queue[i]] & DONE)) return queue[i];
        return -1;
    }
};

}  // namespace lumos
