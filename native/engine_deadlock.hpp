// Why the event loop stopped before every task had ended: which task waits for which.
#pragma once

#include "engine_state.hpp"

namespace lumos {

class Deadlock {
  public:
    explicit Deadlock(const LoopState& state) : s(state), g(state.g) {}

    // The tasks on a cycle, each of which waits for the next.
    Cycle find_cycle() const {
        std::vector<int32_t> previous(g.tasks, -1);
        for (int32_t t = 0; t < g.tasks; ++t)
            if (s.next[t] >= 0) previous[s.next[t]] = t;
        int32_t task = 0;
        while (s.flags[task] & LoopState::DONE) ++task;
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
            if (s.flags[walk.tasks[i]] & LoopState::ARRIVED) {  // else an edge of that kind leads on, and the task is of no set
                const int64_t set = s.set_of(walk.tasks[i]);
                for (int64_t m = g.set_offset[set]; m < g.set_offset[set + 1]; ++m)
                    if (!(s.flags[g.set_task[m]] & LoopState::ARRIVED)) walk.missing.push_back(g.set_task[m]);
            }
        return walk;
    }

  private:
    // The task that keeps a task from running or ending, and the kind of dependency by which it does.
    struct Blocker {
        int32_t task;
        uint8_t kind;
    };

    const LoopState& s;
    const View& g;

    Blocker blocker_of(int32_t task, const std::vector<int32_t>& previous) const {
        if (s.flags[task] & LoopState::ARRIVED) {
            const int64_t set = s.set_of(task);
            for (int64_t m = g.set_offset[set]; m < g.set_offset[set + 1]; ++m)
                if (!(s.flags[g.set_task[m]] & LoopState::ARRIVED)) return {g.set_task[m], RENDEZVOUS};
        }
        for (int64_t e = g.pred_offset[task]; e < g.pred_offset[task + 1]; ++e)
            if (!g.skips(g.pred_kind[e]) && !(s.flags[g.pred[e]] & LoopState::DONE)) return {g.pred[e], g.pred_kind[e]};
        const int32_t proc = g.processor[task];
        const int32_t before = previous[task];
        if (!g.is_stream[proc]) {
            if (before >= 0 && !(s.flags[before] & LoopState::DONE) && !g.skips(THREAD_ORDER)) return {before, THREAD_ORDER};
            for (const LoopState::Stream& stream : s.streams)
                for (const auto& [awaited, waiter] : stream.waiters)
                    if (waiter == task) return {awaited, SYNC};
            if (before >= 0 && !(s.flags[before] & LoopState::DONE)) return {before, SYNC};  // its start takes the snapshot
            return {unfinished_head(g.rank(task)), QUEUE_DEPTH};
        }
        if (!(s.flags[task] & LoopState::ENQUEUED)) return {before, STREAM_ORDER};
        const LoopState::Stream& stream = s.streams[proc];
        if (!g.skips(STREAM_ORDER) && s.queue[stream.head] != task) return {s.queue[stream.head], STREAM_ORDER};
        for (const int32_t other : s.ranks[g.rank(task)].streams) {
            const LoopState::Stream& holder = s.streams[other];
            if (other != proc && s.held[other] && holder.head < holder.tail) return {s.queue[holder.head], OCCUPANCY};
        }
        return {-1, OCCUPANCY};
    }

    // An unfinished first task of a stream of the rank, one of those that keep the queue full.
    int32_t unfinished_head(int32_t rank) const {
        for (const int32_t proc : s.ranks[rank].streams)
            for (int64_t i = s.streams[proc].head; i < s.streams[proc].tail; ++i)
                if (!(s.flags[s.queue[i]] & LoopState::DONE)) return s.queue[i];
        return -1;
    }
};

}  // namespace lumos
