// How many layers' activations the stages of a pipeline hold at the moments when they hold most.
#pragma once

#include <array>

#include "pipeline_schedule.hpp"

namespace lumos::pipeline {

// Dense layers of microbatches that wait for their backward pass, and those that wait only for their weight gradients; the same for
// mixture layers.
using Held = std::array<int64_t, 4>;

inline bool covers(const Held& a, const Held& b) {
    for (int i = 0; i < 4; ++i)
        if (a[i] < b[i]) return false;
    return true;
}

inline void insert(std::vector<Held>& front, const Held& held) {
    for (const Held& other : front)
        if (covers(other, held)) return;
    std::vector<Held> uncovered{held};
    for (const Held& other : front)
        if (!covers(held, other)) uncovered.push_back(other);
    front = uncovered;
}

// The moments at which a stage holds most: at no other one does it hold at least as much of all four. dense, mixture: layers of the
// stage's chunks.
inline std::vector<Held> most_held(Schedule name, int stage, int stages, int chunks, int microbatches, const int64_t* dense,
                                   const int64_t* mixture) {
    std::vector<Held> front;
    Held now{};
    bool grown = false;
    for (const Action& a : schedule(name, stage, stages, microbatches, chunks)) {
        const int64_t layers[2] = {dense[a.chunk], mixture[a.chunk]};
        const bool frees = a.step == Pass::BACKWARD || a.step == Pass::WEIGHT;
        if (frees && grown) insert(front, now);
        grown = !frees;
        for (int type = 0; type < 2; ++type) {
            if (a.step == Pass::FORWARD)
                now[2 * type] += layers[type];
            else if (a.step != Pass::WEIGHT)
                now[2 * type] -= layers[type];
            if (a.step == Pass::INPUT)
                now[2 * type + 1] += layers[type];
            else if (a.step == Pass::WEIGHT)
                now[2 * type + 1] -= layers[type];
        }
    }
    return front;
}

}  // namespace lumos::pipeline
