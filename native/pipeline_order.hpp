// The passes of all stages and the transfers between them, in an order in which each comes after what it waits for.
//
// A pass starts when the pass before it on its stage has ended, when its input has arrived and, where sends block a stage, when the
// output of the pass before it has been received. A transfer starts when the sender's pass has ended, when the receiver has come to it
// (one pass earlier where transfers overlap with compute), and when the transfers before it on both sides' streams have ended. The
// assembled graph has the same order by its streams and rendezvous.
#pragma once

#include <stdexcept>

#include "pipeline_schedule.hpp"

namespace lumos::pipeline {

// Kinds of passes that differ in length: those of Pass, and a backward or weight-gradient pass that completes a chunk's gradients.
// PassKind of search/coarse.py.
LUMOS_SHARED_ENUM(PassKind, int, FORWARD, BACKWARD, INPUT, WEIGHT, FINAL, FINAL_WEIGHT);
constexpr int KINDS = FINAL_WEIGHT + 1;
constexpr int NONE = -1;

struct Event {
    int self;       // pass; of a transfer: the number of passes + the pass that it feeds
    int before[4];  // pass or transfer waited for, NONE where fewer
    bool first;     // a chunk's first forward pass: it needs the chunk's gathered parameters
};

struct Order {
    Schedule name;
    int stages, chunks, held, parts, microbatches;
    std::vector<int> kind, place;             // of every pass
    std::vector<Event> events;                // in topological order
    std::vector<int> last;                    // last pass of every stage
    std::vector<int> finals;                  // [stage · held + chunk]: the pass that completes its gradients
    std::vector<double> count;                // [stage][kind][chunk] of passes, per microbatch
    std::vector<std::pair<int, int>> steady;  // passes `span` microbatches apart in the steady state
    int span = 1;

    int passes() const { return int(kind.size()); }
};

namespace detail {

// Which pass or transfer waits for which. Of n passes, transfer i (into pass i) is node n + i.
struct Links {
    std::vector<int> begin;  // first pass of every stage
    std::vector<Action> action;
    std::vector<int> stage, sender, taker;
};

inline Links link(const Order& o) {
    Links l;
    std::vector<int> where(size_t(2) * o.parts * o.microbatches, NONE);  // (backward, place, microbatch) → pass
    auto at = [&](bool backward, int place, int microbatch) -> int& {
        return where[(size_t(backward) * o.parts + place) * o.microbatches + microbatch];
    };
    for (int s = 0; s < o.stages; ++s) {
        l.begin.push_back(int(l.action.size()));
        for (const Action& a : schedule(o.name, s, o.stages, o.microbatches, o.chunks)) {
            if (a.step != Pass::WEIGHT)
                at(a.step != Pass::FORWARD, place_of(o.name, s, a.chunk, o.stages), a.microbatch) = int(l.action.size());
            l.action.push_back(a);
            l.stage.push_back(s);
        }
    }
    const int n = int(l.action.size());
    l.begin.push_back(n);
    l.sender.assign(n, NONE);
    l.taker.assign(n, NONE);
    for (int i = 0; i < n; ++i) {
        const Action& a = l.action[i];
        if (a.step == Pass::WEIGHT) continue;
        const bool backward = a.step != Pass::FORWARD;
        const int source = place_of(o.name, l.stage[i], a.chunk, o.stages) + (backward ? 1 : -1);
        if (source < 0 || source >= o.parts) continue;
        l.sender[i] = at(backward, source, a.microbatch);
        l.taker[l.sender[i]] = i;
    }
    return l;
}

inline void sort(Order& o, const std::vector<Event>& nodes) {
    const int total = int(nodes.size());
    std::vector<int> missing(total, 0), offset(total + 1, 0);
    for (const Event& e : nodes)
        for (int b : e.before)
            if (b != NONE) ++offset[b + 1];
    for (int i = 0; i < total; ++i) offset[i + 1] += offset[i];
    std::vector<int> after(offset[total]), at(offset.begin(), offset.end() - 1), ready;
    for (int i = 0; i < total; ++i) {
        for (int b : nodes[i].before)
            if (b != NONE) after[at[b]++] = i, ++missing[i];
        if (nodes[i].self != NONE && !missing[i]) ready.push_back(i);
    }
    int wanted = 0;
    for (const Event& e : nodes) wanted += e.self != NONE;
    for (size_t next = 0; next < ready.size(); ++next) {
        const int i = ready[next];
        o.events.push_back(nodes[i]);
        for (int k = offset[i]; k < offset[i + 1]; ++k)
            if (!--missing[after[k]]) ready.push_back(after[k]);
    }
    if (int(o.events.size()) != wanted) throw std::logic_error("a schedule whose stages wait for each other");
}

// What a step of more than `microbatches` microbatches repeats.
inline void find_pace(Order& o, const Links& l) {
    if (o.name == Schedule::DUALPIPE) {  // whole backward passes of the first stage, of either direction, in the middle of the step
        std::vector<int> backward;
        for (int i = 0; i < l.begin[1]; ++i)
            if (l.action[i].step == Pass::BACKWARD) backward.push_back(i);
        const int a = int(backward.size()) / 3, b = 2 * int(backward.size()) / 3;
        if (b > a) o.steady.push_back({backward[a], backward[b]}), o.span = b - a;
        return;
    }
    const int newest = o.microbatches - 2;  // the gradients of the last one are exchanged during its backward pass
    const int span = o.stages < newest ? o.stages : newest;
    if (span <= 0) return;
    auto find = [&](bool backward, int microbatch) {
        for (int i = l.begin[o.stages - 1]; i < l.begin[o.stages]; ++i) {
            const Action& a = l.action[i];
            if (a.step != Pass::WEIGHT && (a.step != Pass::FORWARD) == backward && a.microbatch == microbatch && a.chunk == o.chunks - 1)
                return i;
        }
        throw std::logic_error("a schedule without a last part");
    };
    o.span = span;
    const int before = find(true, newest - span), last = find(true, newest);
    if (o.name == Schedule::GPIPE) {  // all forward, then all backward in reverse
        o.steady.push_back({find(false, newest - span), find(false, newest)});
        o.steady.push_back({last, before});
    } else {
        o.steady.push_back({before, last});
    }
}

}  // namespace detail

// holds: a stage waits until its sends are received. beside: transfers overlap with compute.
inline Order make_order(Schedule name, int stages, int chunks, int microbatches, bool holds, bool beside) {
    Order o;
    o.name = name, o.stages = stages, o.chunks = chunks, o.microbatches = microbatches;
    o.held = held_chunks(name, chunks), o.parts = parts_of(name, stages, chunks);
    const detail::Links l = detail::link(o);
    const int n = int(l.action.size());
    o.finals.assign(size_t(stages) * o.held, NONE);
    o.count.assign(size_t(stages) * KINDS * o.held, 0.0);
    std::vector<Event> nodes(2 * size_t(n), Event{NONE, {NONE, NONE, NONE, NONE}, false});
    for (int s = 0; s < stages; ++s) {
        // the latest transfer on each of the stage's streams: (backward, upwards)
        int sent[4] = {NONE, NONE, NONE, NONE}, received[4] = {NONE, NONE, NONE, NONE};
        std::vector<bool> seen(o.held, false);
        for (int i = l.begin[s]; i < l.begin[s + 1]; ++i) {
            const Action& a = l.action[i];
            const bool backward = a.step != Pass::FORWARD;
            const int lane = 2 * backward + (name == Schedule::DUALPIPE && a.chunk == 1);
            o.kind.push_back(int(a.step));
            o.place.push_back(place_of(name, s, a.chunk, stages));
            if (a.step == Pass::BACKWARD || a.step == Pass::WEIGHT) o.finals[size_t(s) * o.held + a.chunk] = i;
            Event& pass = nodes[i];
            pass.self = i;
            pass.first = !backward && !seen[a.chunk];
            seen[a.chunk] = seen[a.chunk] || !backward;
            const int previous = i > l.begin[s] ? i - 1 : NONE;
            pass.before[0] = previous;
            if (holds && previous != NONE && l.taker[previous] != NONE) pass.before[1] = n + l.taker[previous];
            if (l.sender[i] != NONE) {
                pass.before[2] = n + i;
                Event& transfer = nodes[n + i];
                transfer.self = n + i;
                transfer.before[0] = l.sender[i];
                transfer.before[1] = !beside ? previous : previous != NONE && previous > l.begin[s] ? previous - 1 : NONE;
                transfer.before[2] = received[lane];
                received[lane] = n + i;
            }
            if (l.taker[i] != NONE) {
                nodes[n + l.taker[i]].before[3] = sent[lane];
                sent[lane] = n + l.taker[i];
            }
        }
        o.last.push_back(l.begin[s + 1] - 1);
    }
    for (int i : o.finals)
        if (i != NONE) o.kind[i] = o.kind[i] == BACKWARD ? FINAL : FINAL_WEIGHT;
    for (int i = 0; i < n; ++i) o.count[(size_t(l.stage[i]) * KINDS + o.kind[i]) * o.held + l.action[i].chunk] += 1.0 / microbatches;
    detail::find_pace(o, l);
    detail::sort(o, nodes);
    return o;
}

}  // namespace lumos::pipeline
