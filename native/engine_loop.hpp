// The event loop: starts and ends of tasks in the order of (time, task id, phase).
//
// Most tasks have one event, their end. Only tasks whose start affects others have an event for their start as well: a call at
// whose start a return's snapshot is taken, a launch that takes a place in the queue, a kernel that takes SMs.
#pragma once

#include <algorithm>
#include <cmath>
#include <utility>

#include "engine_deadlock.hpp"
#include "engine_queue.hpp"
#include "engine_state.hpp"

namespace lumos {

class Loop : LoopState {
  public:
    // duration: [tasks] ns. start, end: [tasks], where the answer goes.
    using LoopState::LoopState;

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
        return done == g.tasks ? Cycle{} : Deadlock(*this).find_cycle();
    }

  private:
    EventQueue events;
    int64_t done = 0;

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

    // The task waits for nothing more, except for what is determined at its start.
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
            const int64_t index = table_row(task);
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
        const int64_t at = set_of(task);
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
            satisfy(next[task], now + g.lags_of_rank(g.rank_of[proc])[THREAD_ORDER]);
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
        satisfy(queue[stream.head], first ? UNSET : stream.last_end + g.lags_of_rank(g.rank_of[proc])[STREAM_ORDER]);
    }

    void snapshot(int32_t task, int64_t now) {
        start[task] = std::max(start[task], now);
        for (int64_t i = table_row(task); i < g.waits && g.wait_task[i] == task; ++i) {
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

    // A launch's last device task has ended: its place in the queue goes to the launch that blocked first.
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
        const int64_t part = share(table_row(task));
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
};

}  // namespace lumos
