// Sweeps of a frozen graph: one configuration of durations, or eight side by side.
#pragma once

#include <algorithm>
#include <limits>

#include "engine_frozen.hpp"

namespace lumos {

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

    // One configuration, of which only the earliest start and the latest end of each group of tasks are asked. By position in the
    // order: source, where in `duration` the task's is, and group (-1: none). held: [slots]. False where one of them is out of range.
    struct Groups {
        const int64_t* duration;
        int64_t durations;
        const int32_t *source, *group;
        int64_t groups;
        const int32_t *slot, *pred_slot;
        int64_t *held, *first, *last;
    };

    bool by_group(const Groups& o) const {
        const auto finish = [&](int64_t i, int64_t start, int64_t ready) {
            if (uint64_t(o.source[i]) >= uint64_t(o.durations) || o.group[i] >= o.groups) return false;
            const int64_t end = ready + o.duration[o.source[i]];
            o.held[o.slot[i]] = end;
            if (o.group[i] < 0) return true;
            o.first[o.group[i]] = std::min(o.first[o.group[i]], start);
            o.last[o.group[i]] = std::max(o.last[o.group[i]], end);
            return true;
        };
        const auto ready_at = [&](int64_t i, int64_t time) {
            const int64_t* lag = lags(i);
            for (int64_t e = pred_offset[i]; e < pred_offset[i + 1]; ++e) time = std::max(time, o.held[o.pred_slot[e]] + lag[pred_kind[e]]);
            return time == UNSET ? 0 : time;
        };
        std::vector<int64_t> starts;
        int64_t at = 0;
        for (int64_t s = 0; s <= specials; ++s) {
            const int64_t stop = s < specials ? special_at[s] : g.tasks;
            for (; at < stop; ++at) {
                const int64_t time = ready_at(at, UNSET);
                if (!finish(at, time, time)) return false;
            }
            if (s == specials) break;
            starts.clear();
            for (int64_t i = at; i < at + special_size[s]; ++i) starts.push_back(ready_at(i, released(order[i])));
            const int64_t latest = *std::max_element(starts.begin(), starts.end());
            for (const int64_t start : starts)
                if (!finish(at++, start, latest)) return false;
        }
        return true;
    }
};

// Eight configurations side by side, which makes one cache line per task.
constexpr int LANES = 8;
constexpr size_t LINE = LANES * sizeof(int64_t);

// A duration times a factor is rounded half to even (once, where the compiler fuses the two), exactly below 2^51 ns: adding
// 1.5 · 2^52 leaves the integer in the low bits of the double.
constexpr double SHIFT = 6755399441055744.0;
constexpr int64_t SHIFT_BITS = 0x4338000000000000;

#define LUMOS_INLINE __attribute__((always_inline)) inline

// One number of each configuration, in as many registers of so many bytes as it takes: of vectors wider than its registers a compiler
// compares one entry after the other.
template <int BYTES>
struct Lanes {
    typedef int64_t Whole __attribute__((vector_size(BYTES), may_alias));
    typedef double Real __attribute__((vector_size(BYTES), may_alias));
    static constexpr int PARTS = int(LINE) / BYTES;
    Whole part[PARTS];

    static LUMOS_INLINE Lanes of(int64_t value) {
        Lanes out;
        for (int p = 0; p < PARTS; ++p) out.part[p] = Whole{} + value;
        return out;
    }
    static LUMOS_INLINE Lanes product(const Lanes& factor, double duration) {
        Lanes out;
        for (int p = 0; p < PARTS; ++p) out.part[p] = Whole(Real(factor.part[p]) * duration + SHIFT) - SHIFT_BITS;
        return out;
    }
    LUMOS_INLINE Lanes operator+(int64_t value) const {
        Lanes out;
        for (int p = 0; p < PARTS; ++p) out.part[p] = part[p] + value;
        return out;
    }
    LUMOS_INLINE void operator+=(const Lanes& other) {
        for (int p = 0; p < PARTS; ++p) part[p] += other.part[p];
    }
    LUMOS_INLINE void rise_to(const Lanes& other) {
        for (int p = 0; p < PARTS; ++p) part[p] = other.part[p] > part[p] ? other.part[p] : part[p];
    }
    LUMOS_INLINE void fall_to(const Lanes& other) {
        for (int p = 0; p < PARTS; ++p) part[p] = other.part[p] < part[p] ? other.part[p] : part[p];
    }
    LUMOS_INLINE void replace(int64_t value, int64_t with) {
        for (int p = 0; p < PARTS; ++p) part[p] = part[p] == value ? Whole{} + with : part[p];
    }
};

struct Batch {
    const Sweep* sweep;
    const int32_t *slot, *pred_slot;
    const int64_t* duration[LANES];
    // Where durations are not given one by one: the graph's own, each times its group's factor. factor is null, or [groups * LANES].
    const int64_t* base;
    const uint16_t* group;
    const double* factor;
    int64_t* ends[LANES];   // null where not needed
    void* held;             // [slots] lines
    const int32_t* within;  // by position in the order, the group of which the task is (-1: none); null: all are of group 0
    void *first, *last;     // [groups] lines: the earliest start and the latest end of the tasks of each

    void run();

  private:
    template <int BYTES>
    LUMOS_INLINE void run_in();

// Registers of the widest kind that the machine has; each loop is compiled for those of its own.
#if defined(__x86_64__) && defined(__GNUC__)
    __attribute__((target("avx512f"))) void run_512() { run_in<64>(); }
    __attribute__((target("avx2,fma"))) void run_256() { run_in<32>(); }
#endif
};

inline void Batch::run() {
#if defined(__x86_64__) && defined(__GNUC__)
    if (__builtin_cpu_supports("avx512f")) return run_512();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return run_256();
#endif
    run_in<16>();
}

template <int BYTES>
LUMOS_INLINE void Batch::run_in() {
    using Line = Lanes<BYTES>;
    Line* const lines = static_cast<Line*>(held);
    const Line* const factors = reinterpret_cast<const Line*>(factor);
    Line *const firsts = static_cast<Line*>(first), *const lasts = static_cast<Line*>(last);
    const auto finish = [&](int64_t at, const Line& time) __attribute__((always_inline)) {
        const int32_t task = sweep->order[at];
        Line own = time;
        if (factors)
            own += Line::product(factors[group[task]], double(base[task]));
        else
            for (int j = 0, each = LANES / Line::PARTS; j < LANES; ++j) own.part[j / each][j % each] += duration[j][task];
        const int32_t of = within ? within[at] : 0;
        if (of >= 0) lasts[of].rise_to(own);
        lines[slot[at]] = own;
        if (ends[0])
            for (int j = 0, each = LANES / Line::PARTS; j < LANES; ++j) ends[j][task] = own.part[j / each][j % each];
    };
    int64_t at = 0;
    for (int64_t s = 0; s <= sweep->specials; ++s) {
        const int64_t stop = s < sweep->specials ? sweep->special_at[s] : sweep->g.tasks;
        const int64_t size = s < sweep->specials ? sweep->special_size[s] : 0;
        Line latest = Line::of(UNSET);
        for (; at < stop + size; ++at) {
            const int32_t soon = sweep->ahead(at);
            if (factors) {
                __builtin_prefetch(base + soon);
                __builtin_prefetch(group + soon);
            } else {
                for (int j = 0; j < LANES; ++j) __builtin_prefetch(duration[j] + soon);
            }
            const int64_t* lag = sweep->lags(at);
            Line time = Line::of(UNSET);
            for (int64_t e = sweep->pred_offset[at]; e < sweep->pred_offset[at + 1]; ++e)
                time.rise_to(lines[pred_slot[e]] + lag[sweep->pred_kind[e]]);
            if (at >= stop) time.rise_to(Line::of(sweep->released(sweep->order[at])));
            time.replace(UNSET, 0);
            const int32_t of = within ? within[at] : 0;
            if (of >= 0) firsts[of].fall_to(time);
            if (at < stop)
                finish(at, time);
            else
                latest.rise_to(time);
        }
        for (int64_t member = stop; member < at; ++member) finish(member, latest);
    }
}

}  // namespace lumos
