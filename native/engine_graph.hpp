// The graph as the engine sees it: borrowed columns, checked by the caller (simulate/tables.py) before they come here.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "shared_enum.hpp"

namespace lumos {

// As in graph/table.py, which explains them.
LUMOS_SHARED_ENUM_CLASS(Kind, uint8_t, OPERATOR, HOST, LAUNCH, RUNTIME, SYNC, RETURN, KERNEL, MEMCPY, MEMSET, COLLECTIVE);
LUMOS_SHARED_ENUM(Dependency, uint8_t, THREAD_ORDER, HAND_OFF, LAUNCH, STREAM_ORDER, STREAM_WAIT, SYNC, COPY, QUEUE_DEPTH, OCCUPANCY,
                  RENDEZVOUS, DATA);
constexpr int DEPENDENCIES = DATA + 1;
constexpr int64_t UNSET = std::numeric_limits<int64_t>::min();

struct View {
    int32_t tasks, processors, ranks;
    const int64_t* duration;     // [tasks] as in the graph: what `hold` was measured against
    const int32_t* processor;    // [tasks]
    const uint8_t* kind;         // [tasks]
    const int64_t* pred_offset;  // [tasks + 1]
    const int32_t* pred;
    const uint8_t* pred_kind;
    const int32_t* rank_of;    // [processors] position of the rank
    const uint8_t* is_stream;  // [processors]
    const int32_t* device_of;  // [processors] number of its (rank, device); -1 for a thread
    int32_t devices;
    const int64_t* lag;  // [ranks * DEPENDENCIES]
    int64_t releases;
    const int32_t* release_task;
    const int64_t* release_time;
    int64_t sets;
    const int64_t* set_offset;  // [sets + 1]
    const int32_t* set_task;
    const int32_t* queue_depth;  // [ranks]
    int64_t waits;
    const int32_t* wait_task;  // ascending
    const int32_t* wait_target;
    int64_t occupancies;
    const int32_t* occupancy_task;
    const float* occupancy_share;
    const int64_t* occupancy_hold;
    uint32_t ignored;  // bit per Dependency

    bool skips(uint8_t dependency) const { return ignored >> dependency & 1; }
    bool on_stream(int32_t task) const { return is_stream[processor[task]]; }
    bool is_launch_call(int32_t task) const { return Kind(kind[task]) == Kind::LAUNCH && !on_stream(task); }
    int32_t rank(int32_t task) const { return rank_of[processor[task]]; }
    const int64_t* lags_of_rank(int32_t position) const { return lag + int64_t(position) * DEPENDENCIES; }
    const int64_t* lags(int32_t task) const { return lags_of_rank(rank(task)); }
    bool keeps_order(int32_t proc) const { return !skips(is_stream[proc] ? STREAM_ORDER : THREAD_ORDER); }

    // The launch of a device task, -1 for an orphan.
    int32_t launch(int32_t task) const {
        if (skips(LAUNCH)) return -1;
        for (int64_t e = pred_offset[task]; e < pred_offset[task + 1]; ++e)
            if (pred_kind[e] == LAUNCH) return pred[e];
        return -1;
    }
};

// Why nothing can run: tasks[i] waits for tasks[i + 1] (the last one for the first) by a dependency of kinds[i].
struct Cycle {
    std::vector<int32_t> tasks, kinds;
    std::vector<int32_t> missing;  // of the first rendezvous on the cycle: the members that never arrive
    bool empty() const { return tasks.empty(); }
};

}  // namespace lumos
