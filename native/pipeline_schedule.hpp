// The order in which a pipeline stage runs its passes. Layouts, memory and search all take every schedule from here.
//
// GPipe: Huang et al. 2019 (arXiv:1811.06965). 1F1B: Narayanan et al. 2019 (PipeDream-flush). Interleaved: Narayanan et al. 2021
// (arXiv:2104.04473), in Megatron's order. Zero bubble: Qi et al. 2023 (arXiv:2401.10241), ZB-H1: no stage holds more than the first
// one of 1F1B does. DualPipe: DeepSeek-V3 (arXiv:2412.19437), in the order of github.com/deepseek-ai/DualPipe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <vector>

#include "shared_enum.hpp"

namespace lumos::pipeline {

// As in the Python enums of the same names, which explain them.
LUMOS_SHARED_ENUM_CLASS(Schedule, int, GPIPE, ONE_F_ONE_B, INTERLEAVED, ZERO_BUBBLE, DUALPIPE);
LUMOS_SHARED_ENUM_CLASS(Pass, int, FORWARD, BACKWARD, INPUT, WEIGHT);

struct Action {
    Pass step;
    int microbatch;
    int chunk;
};
using Actions = std::vector<Action>;

inline Actions gpipe(int microbatches) {
    Actions out;
    for (int i = 0; i < microbatches; ++i) out.push_back({Pass::FORWARD, i, 0});
    for (int i = microbatches; i-- > 0;) out.push_back({Pass::BACKWARD, i, 0});
    return out;
}

// Stage s holds at most stages − s microbatches.
inline Actions one_forward_one_backward(int stage, int stages, int microbatches) {
    Actions out;
    const int warm = stages - stage - 1 < microbatches ? stages - stage - 1 : microbatches;
    for (int i = 0; i < warm; ++i) out.push_back({Pass::FORWARD, i, 0});
    for (int i = 0; i < microbatches; ++i) {
        if (warm + i < microbatches) out.push_back({Pass::FORWARD, warm + i, 0});
        out.push_back({Pass::BACKWARD, i, 0});
    }
    return out;
}

// Groups of `stages` microbatches go through the chunks in turn.
inline Actions interleaved(int stage, int stages, int microbatches, int chunks) {
    const int total = microbatches * chunks;
    auto action = [&](Pass step, int i) {
        const int group = i / (stages * chunks), inside = i % (stages * chunks);
        const int chunk = inside / stages;
        return Action{step, group * stages + inside % stages, step == Pass::FORWARD ? chunk : chunks - 1 - chunk};
    };
    int warm = (stages - stage - 1) * 2 + (chunks - 1) * stages;
    if (microbatches == stages || warm > total) warm = total;
    Actions out;
    for (int i = 0; i < warm; ++i) out.push_back(action(Pass::FORWARD, i));
    for (int i = 0; i < total; ++i) {
        if (warm + i < total) out.push_back(action(Pass::FORWARD, warm + i));
        out.push_back(action(Pass::BACKWARD, i));
    }
    return out;
}

// 1F1B in which a stage delays some weight gradients to fill its idle time at the end: as many as there are stages before it, since
// later stages have more idle time. No stage needs the first stage's input gradients, so its backward passes are not split, as in
// runtimes, which merge the two parts where they are neighbours.
inline Actions zero_bubble(int stage, int stages, int microbatches) {
    const Actions plain = one_forward_one_backward(stage, stages, microbatches);
    if (stage == 0) return plain;
    Actions out;
    int backward = 0, weights = 0;
    for (const Action& action : plain) {
        if (action.step == Pass::FORWARD) {
            out.push_back(action);
            continue;
        }
        out.push_back({Pass::INPUT, action.microbatch, 0});
        if (++backward > stage) out.push_back({Pass::WEIGHT, weights++, 0});
    }
    while (weights < microbatches) out.push_back({Pass::WEIGHT, weights++, 0});
    return out;
}

// Two directions at once: chunk 0 runs down the pipeline with the first half of the microbatches, chunk 1 up with the rest. The parts
// are the eight steps of DualPipe.step. There a forward and a backward pass can run together, their kernels interleaved; here such
// passes run one after the other.
inline Actions dualpipe(int stage, int stages, int microbatches) {
    const int half = stages / 2, near = stage < half ? 0 : 1, far = 1 - near;  // near: the direction that enters on this half
    const int depth = stage < half ? stage : stages - 1 - stage;
    const int first[2] = {0, microbatches / 2};
    int forwarded[2] = {0, 0}, returned[2] = {0, 0};
    Actions out, put_off;
    size_t weights = 0;
    auto forward = [&](int chunk) { out.push_back({Pass::FORWARD, first[chunk] + forwarded[chunk]++, chunk}); };
    auto backward = [&](int chunk, bool split) {
        const int microbatch = first[chunk] + returned[chunk]++;
        out.push_back({split ? Pass::INPUT : Pass::BACKWARD, microbatch, chunk});
        if (split) put_off.push_back({Pass::WEIGHT, microbatch, chunk});
    };
    auto weight = [&] { out.push_back(put_off[weights++]); };
    for (int i = 0; i < 2 * (half - depth - 1); ++i) forward(near);
    for (int i = 0; i <= depth; ++i) forward(near), forward(far);
    for (int i = 0; i < half - depth - 1; ++i) backward(far, true), weight(), forward(far);
    for (int i = 0; i < microbatches / 2 - stages + depth + 1; ++i) {
        forward(near), backward(far, false), forward(far), backward(near, false);
    }
    for (int i = 0; i < half - depth - 1; ++i) backward(far, false), forward(far), backward(near, false);
    for (int turn = 0; turn < 2 * (depth + 1); ++turn) backward(turn % 2 ? near : far, turn > depth);
    for (int i = 0; i < half - depth - 1; ++i) weight(), backward(near, true);
    while (weights < put_off.size()) weight();
    return out;
}

inline Actions schedule(Schedule name, int stage, int stages, int microbatches, int chunks) {
    switch (name) {
        case Schedule::GPIPE: return gpipe(microbatches);
        case Schedule::ZERO_BUBBLE: return zero_bubble(stage, stages, microbatches);
        case Schedule::DUALPIPE: return dualpipe(stage, stages, microbatches);
        default: break;
    }
    return chunks > 1 ? interleaved(stage, stages, microbatches, chunks) : one_forward_one_backward(stage, stages, microbatches);
}

// The most passes of one order: 2^26 of them take some 10 GB.
constexpr int64_t MOST_PASSES = int64_t(1) << 26;

// Throws std::invalid_argument unless the schedule has an order for these sizes.
inline void check_sizes(int name, int stages, int chunks, int microbatches) {
    if (name < 0 || name > int(Schedule::DUALPIPE)) throw std::invalid_argument("no such schedule");
    if (stages < 1 || chunks < 1 || microbatches < 1) throw std::invalid_argument("stages, chunks and microbatches must be at least 1");
    if (3.0 * stages * chunks * microbatches > double(MOST_PASSES)) throw std::invalid_argument("more passes than an order can have");
    const Schedule schedule = Schedule(name);
    if (schedule == Schedule::DUALPIPE) {
        if (stages % 2 || microbatches % 2 || microbatches < 2 * stages)
            throw std::invalid_argument("dualpipe needs even stages and microbatches, at least two of these for each of those");
    } else if (chunks > 1) {
        if (schedule == Schedule::GPIPE || schedule == Schedule::ZERO_BUBBLE) throw std::invalid_argument("the schedule has no chunks");
        if (microbatches % stages) throw std::invalid_argument("chunks need microbatches that are a multiple of the stages");
    }
}

// How many chunks a device holds, how many parts the model has along the pipeline, and which of them a stage's chunk is.
inline int held_chunks(Schedule name, int chunks) { return name == Schedule::DUALPIPE ? 2 : chunks; }
inline int parts_of(Schedule name, int stages, int chunks) { return name == Schedule::DUALPIPE ? stages : stages * chunks; }
inline int place_of(Schedule name, int stage, int chunk, int stages) {
    if (name == Schedule::DUALPIPE) return chunk == 1 ? stages - 1 - stage : stage;
    return chunk * stages + stage;
}

}  // namespace lumos::pipeline
