// Sweeps of a frozen graph: one configuration of durations, or eight side by side.
#pragma once

#include <algorithm>
#include <limits>

#include "engine_frozen.hpp"

namespace lumos {

// The sweeps' inner loops vectorise over configurations. gcc compiles them for several vector widths, and the widest that the
// machine has is chosen when the module loads. Not under sanitizers: the functions that choose would run before those are ready.
#if defined(__x86_64__) && defined(__linux__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__)
#define LUMOS_WIDEST __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define LUMOS_WIDEST
#endif

struct Sweep {
    const View& g;  // tasks, lag, releases
    const int32_t *order, *rank;
    const int64_t* pred_offset;
    const int32_t* pred;
    const uint8_t* pred_kind;
    int64_t specials;
    const int64_t* special_at;
    const int32_t* special_size;

    Sweep(const View& graph, const Frozen& frozen)
        : g(graph),
          order(frozen.order.data()),
          rank(frozen.rank.data()),
          pred_offset(frozen.pred_offset.data()),
          pred(frozen.pred.data()),
          pred_kind(frozen.pred_kind.data()),
          specials(int64_t(frozen.special_at.size())),
          special_at(frozen.special_at.data()),
          special_size(frozen.special_size.data()) {}

    // How many tasks ahead durations and times are prefetched: the tasks come from as many places in memory as there are
    // processors, which is more than the hardware prefetches by itself.
    static constexpr int64_t AHEAD = 24;

    int32_t ahead(int64_t at) const { return order[std::min(at + AHEAD, int64_t(g.tasks) - 1)]; }
    const int64_t* lags(int64_t at) const { return g.lags_of_rank(rank[at]); }

    int64_t released(int32_t task) const {
        const int32_t* stop = g.release_task + g.releases;  // ascending
        int64_t latest = UNSET;
        for (const int32_t* r = std::lower_bound(g.release_task, stop, task); r != stop && *r == task; ++r)
            latest = std::max(latest, g.release_time[r - g.release_task]);
        return latest;
    }

    int64_t ready(int64_t at, const int64_t* end) const {
        const int64_t* lag = lags(at);
        int64_t time = UNSET;
        for (int64_t e = pred_offset[at]; e < pred_offset[at + 1]; ++e) time = std::max(time, end[pred[e]] + lag[pred_kind[e]]);
        return time;
    }

    void one(const int64_t* duration, int64_t* start, int64_t* end) const {
        int64_t at = 0;
        for (int64_t s = 0; s <= specials; ++s) {
            const int64_t stop = s < specials ? special_at[s] : g.tasks;
            for (; at < stop; ++at) {
                const int32_t soon = ahead(at);
                __builtin_prefetch(duration + soon);
                __builtin_prefetch(start + soon, 1);
                __builtin_prefetch(end + soon, 1);
                const int32_t t = order[at];
                const int64_t time = pred_offset[at] == pred_offset[at + 1] ? 0 : ready(at, end);
                start[t] = time;
                end[t] = time + duration[t];
            }
            if (s == specials) break;
            const int64_t last = at + special_size[s];
            int64_t latest = UNSET;
            for (int64_t i = at; i < last; ++i) {
                int64_t time = std::max(ready(i, end), released(order[i]));
                if (time == UNSET) time = 0;
                start[order[i]] = time;
                latest = std::max(latest, time);
            }
            for (; at < last; ++at) end[order[at]] = latest + duration[order[at]];
        }
    }
};

// Eight configurations side by side, which makes one cache line per task.
constexpr int LANES = 8;
typedef int64_t Lanes __attribute__((vector_size(LANES * sizeof(int64_t))));
typedef double Factors __attribute__((vector_size(LANES * sizeof(double))));

// A duration times a factor is rounded half to even (once, where the compiler fuses the two), exactly below 2^51 ns: adding
// 1.5 · 2^52 leaves the integer in the low bits of the double.
constexpr double SHIFT = 6755399441055744.0;
constexpr int64_t SHIFT_BITS = 0x4338000000000000;

struct Batch {
    const Sweep* sweep;
    const int32_t *slot, *pred_slot;
    const int64_t* duration[LANES];
    // Where durations are not given one by one: the graph's own, each times its group's factor. factor is null, or [groups].
    const int64_t* base;
    const uint16_t* group;
    const Factors* factor;
    int64_t* ends[LANES];  // null where not needed
    Lanes* held;           // [slots]
    const uint8_t* mark;   // null: first and last are of all tasks; else of those marked 1, before and earlier of those marked 2 and 3
    int64_t first[LANES], last[LANES], before[LANES], earlier[LANES];  // earliest start, and latest ends

    LUMOS_WIDEST void run();
};

inline LUMOS_WIDEST void Batch::run() {
    const Lanes unset = Lanes{} + UNSET, zero = {};
    Lanes earliest = Lanes{} + std::numeric_limits<int64_t>::max(), final = unset, previous = unset, third = unset;
    const auto finish = [&](int64_t at, Lanes time) __attribute__((always_inline)) {
        const int32_t task = sweep->order[at];
        Lanes own;
        if (factor)
            own = Lanes(factor[group[task]] * double(base[task]) + SHIFT) - SHIFT_BITS;
        else
            for (int j = 0; j < LANES; ++j) own[j] = duration[j][task];
        own += time;
        if (!mark || mark[task] == 1)
            final = own > final ? own : final;
        else if (mark[task] == 2)
            previous = own > previous ? own : previous;
        else if (mark[task] == 3)
            third = own > third ? own : third;
        held[slot[at]] = own;
        if (ends[0])
            for (int j = 0; j < LANES; ++j) ends[j][task] = own[j];
    };
    int64_t at = 0;
    for (int64_t s = 0; s <= sweep->specials; ++s) {
        const int64_t stop = s < sweep->specials ? sweep->special_at[s] : sweep->g.tasks;
        const int64_t size = s < sweep->specials ? sweep->special_size[s] : 0;
        Lanes latest = unset;
        for (; at < stop + size; ++at) {
            const int32_t soon = sweep->ahead(at);
            if (factor) {
                __builtin_prefetch(base + soon);
                __builtin_prefetch(group + soon);
            } else {
                for (int j = 0; j < LANES; ++j) __builtin_prefetch(duration[j] + soon);
            }
            const int64_t* lag = sweep->lags(at);
            Lanes time = unset;
            for (int64_t e = sweep->pred_offset[at]; e < sweep->pred_offset[at + 1]; ++e) {
                const Lanes after = held[pred_slot[e]] + lag[sweep->pred_kind[e]];
                time = after > time ? after : time;
            }
            if (at >= stop) {
                const Lanes release = Lanes{} + sweep->released(sweep->order[at]);
                time = release > time ? release : time;
            }
            time = time == unset ? zero : time;
            if (!mark || mark[sweep->order[at]] == 1) earliest = time < earliest ? time : earliest;
            if (at < stop)
                finish(at, time);
            else
                latest = time > latest ? time : latest;
        }
        for (int64_t member = stop; member < at; ++member) finish(member, latest);
    }
    for (int j = 0; j < LANES; ++j) first[j] = earliest[j], last[j] = final[j], before[j] = previous[j], earlier[j] = third[j];
}

}  // namespace lumos
