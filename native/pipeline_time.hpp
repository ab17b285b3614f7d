// Step times of many plans whose passes have one order: the recurrence of pipeline_order.hpp with each plan's own times, then the end
// of the step. LANES plans are computed side by side, in one pass over the events.
#pragma once

#include <algorithm>

#include "pipeline_order.hpp"

namespace lumos::pipeline {

constexpr int LANES = 8;

// The columns of a plan's row, in ns. search/coarse.py fills the row and checks its columns against COLUMN_NAMES. Two columns are for
// (dense, mixture) layers, three for the (first, middle, last) stage.
enum Column : int {
    LENGTH = 0,                   // a layer's pass, [kind][2]
    HOST = LENGTH + 2 * KINDS,    // the host's time to launch it, [kind][2]
    LATE = HOST + 2 * KINDS,      // where the host waits for a transfer: how late the first layer is, [kind][2]
    LATER = LATE + 2 * KINDS,     // and each further one, [kind][2]
    LATENCY = LATER + 2 * KINDS,  // of the launch after it
    ENDS = LATENCY + 1,           // embedding forward, backward; head forward, backward
    ENDS_HOST = ENDS + 4,         // embedding, head: both passes
    TRANSFER = ENDS_HOST + 2,
    GATHER = TRANSFER + 1,                 // gather of a layer's parameters during the first forward pass, 0 without one
    GRADIENTS = GATHER + 2,                // exchange of a layer's gradients during the passes that complete them
    BUCKET = GRADIENTS + 2,                // layers exchanged together
    OUTER_GRADIENTS = BUCKET + 2,          // the same exchange for embedding, head
    LATE_GRADIENTS = OUTER_GRADIENTS + 2,  // exchange after the last pass, by stage: three
    OPTIMIZER = LATE_GRADIENTS + 3,        // by stage: three
    LATE_GATHER = OPTIMIZER + 3,           // gather after the optimizer, by stage: three
    TIED = LATE_GATHER + 3,
    LAUNCHES = TIED + 1,  // host time of a microbatch's transfers
    MICROBATCHES = LAUNCHES + 1,
    BESIDE = MICROBATCHES + 1,  // 1: gradients are exchanged during the last passes
    BEGIN = BESIDE + 1,         // when the first pass may start
    COLUMNS = BEGIN + 1,
};

struct NamedColumn {
    const char* name;
    int first;
};
constexpr NamedColumn COLUMN_NAMES[] = {
    {"length", LENGTH},
    {"host", HOST},
    {"late", LATE},
    {"later", LATER},
    {"latency", LATENCY},
    {"ends", ENDS},
    {"ends_host", ENDS_HOST},
    {"transfer", TRANSFER},
    {"gather", GATHER},
    {"gradients", GRADIENTS},
    {"bucket", BUCKET},
    {"outer_gradients", OUTER_GRADIENTS},
    {"late_gradients", LATE_GRADIENTS},
    {"optimizer", OPTIMIZER},
    {"late_gather", LATE_GATHER},
    {"tied", TIED},
    {"launches", LAUNCHES},
    {"microbatches", MICROBATCHES},
    {"beside", BESIDE},
    {"begin", BEGIN},
};

using Row = const double*;

struct Chunks {  // layers by place along the pipeline
    const int64_t *dense, *mixture;
    double of(int place, Row row, int column) const { return dense[place] * row[column] + mixture[place] * row[column + 1]; }
};

class Timer {
  public:
    Timer(const Order& order, Chunks layers) : o_(order), layers_(layers) {
        ends_.resize(2 * size_t(o_.passes()) * LANES);
        length_.resize(size_t(KINDS) * o_.parts * LANES);
        late_.resize(length_.size());
        ready_.resize(size_t(o_.parts) * LANES);
    }

    // Steps of up to LANES plans, ns; rows beyond `count` repeat the last one.
    void run(const Row* rows, int count, double* out) {
        for (int lane = 0; lane < LANES; ++lane) prepare(rows[std::min(lane, count - 1)], lane);
        sweep();
        for (int lane = 0; lane < count; ++lane) out[lane] = finish(rows[lane], lane);
    }

  private:
    const Order& o_;
    Chunks layers_;
    std::vector<double> ends_, length_, late_, ready_;
    double transfer_[LANES], begin_[LANES];

    double end(int pass, int lane) const { return ends_[size_t(pass) * LANES + lane]; }

    void prepare(Row row, int lane) {
        transfer_[lane] = row[TRANSFER];
        begin_[lane] = row[BEGIN];
        const int tail = o_.parts - 1;
        for (int kind = 0; kind < KINDS; ++kind) {
            const bool forward = kind == FORWARD, weights = kind == WEIGHT || kind == FINAL_WEIGHT;
            for (int place = 0; place < o_.parts; ++place) {
                double& length = length_[(size_t(kind) * o_.parts + place) * LANES + lane];
                length = layers_.of(place, row, LENGTH + 2 * kind);
                if (place == 0 && !weights) length += row[ENDS + !forward];
                if (place == tail && !weights) length += row[ENDS + 2 + !forward];
                late_[(size_t(kind) * o_.parts + place) * LANES + lane] = late(row, kind, place, forward);
            }
        }
        for (int stage = 0; stage < o_.stages; ++stage) {  // a chunk's last layer starts when its parameters are there
            double gathered = row[BEGIN];
            for (int chunk = 0; chunk < o_.held; ++chunk) {
                const int place = place_of(o_.name, stage, chunk, o_.stages);
                const double gather = layers_.of(place, row, GATHER);
                gathered += gather;
                const double one = layers_.mixture[place] ? row[LENGTH + 1] : row[LENGTH];
                ready_[size_t(place) * LANES + lane] = gather > 0 ? gathered + one : 0.0;
            }
        }
    }

    // How much longer a pass takes whose host starts at the same time as its device.
    double late(Row row, int kind, int place, bool forward) const {
        const int64_t layers[2] = {layers_.dense[place], layers_.mixture[place]};
        if (!layers[0] && !layers[1]) return row[LATENCY];
        const int type = forward ? !layers[0] : layers[1] > 0;  // of the layer that runs first
        return row[LATENCY] + row[LATE + 2 * kind + type] + layers_.of(place, row, LATER + 2 * kind) - row[LATER + 2 * kind + type];
    }

    void sweep() {
        const int n = o_.passes();
        double* const ends = ends_.data();
        for (const Event& e : o_.events) {
            double now[LANES];
            std::copy(begin_, begin_ + LANES, now);
            for (int before : e.before) {
                if (before == NONE) continue;
                const double* other = ends + size_t(before) * LANES;
                for (int lane = 0; lane < LANES; ++lane) now[lane] = std::max(now[lane], other[lane]);
            }
            double* self = ends + size_t(e.self) * LANES;
            if (e.self >= n) {
                for (int lane = 0; lane < LANES; ++lane) self[lane] = now[lane] + transfer_[lane];
                continue;
            }
            const size_t which = (size_t(o_.kind[e.self]) * o_.parts + o_.place[e.self]) * LANES;
            const double *length = &length_[which], *late = &late_[which];
            const double waited = e.before[2] == NONE ? 0.0 : 1.0;  // received, so the host has waited too
            for (int lane = 0; lane < LANES; ++lane) self[lane] = now[lane] + length[lane] + waited * late[lane];
            if (!e.first) continue;
            const double* ready = &ready_[size_t(o_.place[e.self]) * LANES];
            for (int lane = 0; lane < LANES; ++lane) self[lane] = std::max(self[lane], ready[lane]);
        }
    }

    int which(int stage) const { return stage == 0 ? 0 : stage == o_.stages - 1 ? 2 : 1; }

    double finish(Row row, int lane) const {
        double pace = 0;
        for (const auto& [a, b] : o_.steady) pace += (end(b, lane) - end(a, lane)) / o_.span;
        const double beyond = (row[MICROBATCHES] - o_.microbatches) * pace;
        double latest = 0, step = 0, first = 0, last = 0;
        for (int stage = 0; stage < o_.stages; ++stage) {
            const int kind = which(stage);
            double done = end(o_.last[stage], lane);
            if (row[BESIDE] > 0) done = std::max(done, exchanged(row, stage, lane));
            done = std::max(done + beyond + row[LATE_GRADIENTS + kind], host(row, stage));
            if (stage == 0) first = done;
            if (stage == o_.stages - 1) last = done;
            latest = std::max(latest, done);
            step = std::max(step, done + row[OPTIMIZER + kind] + row[LATE_GATHER + kind]);
        }
        if (row[TIED] > 0) {  // the first and the last stage add up the gradients of the embedding that they share
            const double together = std::max(first, last) + row[TIED];
            for (int kind : {0, 2}) step = std::max(step, together + row[OPTIMIZER + kind] + row[LATE_GATHER + kind]);
        }
        return step;
    }

    // When the exchange of the gradients that a stage exchanges during its last passes has ended.
    double exchanged(Row row, int stage, int lane) const {
        double line = row[BEGIN];
        std::vector<int> finals;
        for (int chunk = 0; chunk < o_.held; ++chunk) finals.push_back(o_.finals[size_t(stage) * o_.held + chunk]);
        std::sort(finals.begin(), finals.end());
        bool head = false;
        for (int pass : finals) {
            const int place = o_.place[pass], kind = o_.kind[pass];
            const double outer = place == 0 && kind == FINAL ? row[ENDS + 1] : 0.0;
            double now = end(pass, lane) - outer - layers_.of(place, row, LENGTH + 2 * kind);
            for (int type : {1, 0}) {  // dense layers come first along the model, so last here
                int64_t left = type ? layers_.mixture[place] : layers_.dense[place];
                const int64_t size = std::max<int64_t>(1, int64_t(row[BUCKET + type]));
                for (; left > 0; left -= size) {
                    const double some = double(std::min(left, size));
                    now += some * row[LENGTH + 2 * kind + type];
                    line = std::max(line, now) + some * row[GRADIENTS + type];
                }
            }
            if (place == 0) line = std::max(line, end(pass, lane)) + row[OUTER_GRADIENTS];
            head = head || place == o_.parts - 1;
        }
        if (head && row[OUTER_GRADIENTS + 1] > 0) line = std::max(line, end(o_.last[stage], lane)) + row[OUTER_GRADIENTS + 1];
        return line;
    }

    // When a host that never waits would have launched everything.
    double host(Row row, int stage) const {
        double each = 0;
        for (int kind = 0; kind < KINDS; ++kind) {
            const bool weights = kind == WEIGHT || kind == FINAL_WEIGHT;
            for (int chunk = 0; chunk < o_.held; ++chunk) {
                const int place = place_of(o_.name, stage, chunk, o_.stages);
                const double count = o_.count[(size_t(stage) * KINDS + kind) * o_.held + chunk];
                if (count == 0) continue;
                double one = layers_.of(place, row, HOST + 2 * kind);
                if (place == 0 && !weights) one += row[ENDS_HOST] / 2;
                if (place == o_.parts - 1 && !weights) one += row[ENDS_HOST + 1] / 2;
                each += count * one;
            }
        }
        return row[BEGIN] + row[MICROBATCHES] * (each + row[LAUNCHES]);
    }
};

}  // namespace lumos::pipeline
