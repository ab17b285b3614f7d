// Checks of the index and value ranges that the loops rely on, so that a malformed graph gives a message and never a crash.
#pragma once

#include <string>

#include "engine_graph.hpp"

namespace lumos {

namespace detail {

inline std::string at(const char* column, int64_t i, const std::string& what) {
    return std::string(column) + "[" + std::to_string(i) + "] " + what;
}

inline std::string outside(const char* column, int64_t i, int64_t value, int64_t stop) {
    return at(column, i, "is " + std::to_string(value) + ", outside 0.." + std::to_string(stop - 1));
}

inline std::string check_processors(const View& g) {
    for (int32_t p = 0; p < g.processors; ++p) {
        if (g.rank_of[p] < 0 || g.rank_of[p] >= g.ranks) return outside("rank_of", p, g.rank_of[p], g.ranks);
        if (g.is_stream[p] && (g.device_of[p] < 0 || g.device_of[p] >= g.devices))
            return outside("device_of", p, g.device_of[p], g.devices);
    }
    return {};
}

inline std::string check_tasks(const View& g) {
    double total = 0;
    for (int32_t t = 0; t < g.tasks; ++t) {
        if (g.processor[t] < 0 || g.processor[t] >= g.processors) return outside("processor", t, g.processor[t], g.processors);
        if (g.duration[t] < 0) return at("duration", t, "is negative");
        total += double(g.duration[t]);
    }
    for (int64_t i = 0; i < int64_t(g.ranks) * DEPENDENCIES; ++i) {
        if (g.lag[i] < 0) return at("lag", i / DEPENDENCIES, "has a negative constant");
        total += double(g.lag[i]) * g.tasks;
    }
    if (total > 4e18) return "durations and lags sum to more than 4e18 ns, which int64 times cannot hold";
    return {};
}

inline std::string check_predecessors(const View& g) {
    if (g.pred_offset[0] != 0) return at("pred_offset", 0, "is not 0");
    for (int32_t t = 0; t < g.tasks; ++t)
        if (g.pred_offset[t + 1] < g.pred_offset[t]) return at("pred_offset", t + 1, "is less than the offset before it");
    for (int32_t t = 0; t < g.tasks; ++t) {
        int launches = 0;
        for (int64_t e = g.pred_offset[t]; e < g.pred_offset[t + 1]; ++e) {
            if (g.pred[e] < 0 || g.pred[e] >= g.tasks) return outside("pred", e, g.pred[e], g.tasks);
            if (g.pred_kind[e] >= DEPENDENCIES) return outside("pred_kind", e, g.pred_kind[e], DEPENDENCIES);
            launches += g.pred_kind[e] == LAUNCH;
        }
        if (launches > 1 && g.on_stream(t))
            return at("pred", g.pred_offset[t], "gives device task " + std::to_string(t) + " a second launch");
    }
    return {};
}

inline std::string check_sets(const View& g) {
    if (g.set_offset[0] != 0) return at("rendezvous_offset", 0, "is not 0");
    for (int64_t s = 0; s < g.sets; ++s)
        if (g.set_offset[s + 1] < g.set_offset[s]) return at("rendezvous_offset", s + 1, "is less than the offset before it");
    std::vector<bool> seen(g.sets ? g.tasks : 0);
    for (int64_t i = 0; i < g.set_offset[g.sets]; ++i) {
        const int32_t t = g.set_task[i];
        if (t < 0 || t >= g.tasks) return outside("rendezvous_task", i, t, g.tasks);
        if (seen[t]) return at("rendezvous_task", i, "puts task " + std::to_string(t) + " into a second rendezvous");
        seen[t] = true;
    }
    return {};
}

inline std::string check_waits(const View& g) {
    for (int64_t i = 0; i < g.releases; ++i) {
        if (g.release_task[i] < 0 || g.release_task[i] >= g.tasks) return outside("release_task", i, g.release_task[i], g.tasks);
        if (std::abs(double(g.release_time[i])) > 4e18) return at("release_time", i, "is beyond what int64 times can hold");
    }
    for (int64_t i = 0; i < g.waits; ++i) {
        if (g.wait_task[i] < 0 || g.wait_task[i] >= g.tasks) return outside("waits.task", i, g.wait_task[i], g.tasks);
        if (g.on_stream(g.wait_task[i])) return at("waits.task", i, "is on a stream; only CPU tasks wait for a stream");
        const int32_t target = g.wait_target[i];
        if (target < -1 || target >= g.processors) return outside("waits.target", i, target, g.processors);
        if (target >= 0 && !g.is_stream[target]) return at("waits.target", i, "is a thread; only streams can be awaited");
    }
    return {};
}

inline std::string check_occupancy(const View& g) {
    if (g.occupancies >= int64_t(1) << 30) return "occupancy lists more than 2^30 kernels";
    std::vector<bool> seen(g.occupancies ? g.tasks : 0);
    for (int64_t i = 0; i < g.occupancies; ++i) {
        const int32_t t = g.occupancy_task[i];
        if (t < 0 || t >= g.tasks) return outside("occupancy.task", i, t, g.tasks);
        if (!g.on_stream(t)) return at("occupancy.task", i, "is on a thread; only device tasks take SMs");
        if (seen[t]) return at("occupancy.task", i, "lists task " + std::to_string(t) + " a second time");
        seen[t] = true;
        if (!(g.occupancy_share[i] > 0 && g.occupancy_share[i] <= 1)) return at("occupancy.share", i, "is outside (0, 1]");
        if (g.occupancy_hold[i] < 0 || g.occupancy_hold[i] > g.duration[t]) return at("occupancy.hold", i, "is outside 0..duration");
    }
    return {};
}

}  // namespace detail

// What is wrong first, or an empty text.
inline std::string check(const View& g) {
    for (const auto part : {detail::check_processors, detail::check_tasks, detail::check_predecessors, detail::check_sets,
                            detail::check_waits, detail::check_occupancy})
        if (std::string wrong = part(g); !wrong.empty()) return wrong;
    return {};
}

}  // namespace lumos
