// Cuts nested host events into self-time slices: the inner loop of graph/hand_offs/slices.py.
//
// A profiler's host rows nest on their thread. A dependency graph instead needs the thread's time cut into slices that
// follow one another, each charged to the innermost row running then, so that no time counts twice.

#include <nanobind/nanobind.h>

#include <cstdint>
#include <vector>

#include "arrays.hpp"

using namespace lumos;
using namespace nb::literals;

namespace {

struct Slices {
    std::vector<int32_t> event;  // index into the input, -1 where no event ran
    std::vector<int32_t> lane;
    std::vector<int64_t> start, end;

    void add(int32_t e, int32_t l, int64_t a, int64_t b) {
        event.push_back(e);
        lane.push_back(l);
        start.push_back(a);
        end.push_back(b);
    }
};

struct Open {
    int32_t event;
    int64_t end;
    bool seen;  // already has a slice
};

// Charge [from, to) to the top of the stack; returns the new position in time.
int64_t charge(Slices& out, std::vector<Open>& stack, int32_t lane, int64_t from, int64_t to) {
    if (to > from) {
        out.add(stack.back().event, lane, from, to);
        stack.back().seen = true;
        return to;
    }
    return from;
}

void close(Slices& out, std::vector<Open>& stack, const uint8_t* keep, int32_t lane, int64_t& now) {
    now = charge(out, stack, lane, now, stack.back().end);
    const Open& top = stack.back();
    if (!top.seen && keep[top.event]) out.add(top.event, lane, now, now);
    stack.pop_back();
}

// Events sorted by (lane, start, -end), and which of them get a slice even if it lasts no time, or may be around others.
struct Events {
    size_t count;
    const int32_t* lane;
    const int64_t *start, *end;
    const uint8_t* keep;
};

Slices cut(const Events& events) {
    Slices out;
    out.event.reserve(2 * events.count);
    out.lane.reserve(2 * events.count);
    out.start.reserve(2 * events.count);
    out.end.reserve(2 * events.count);
    std::vector<Open> stack;
    int64_t now = 0;
    for (size_t i = 0; i < events.count; ++i) {
        const int32_t lane = events.lane[i];
        const int64_t start = events.start[i];
        if (i == 0 || lane != events.lane[i - 1]) {
            while (!stack.empty()) close(out, stack, events.keep, events.lane[i - 1], now);
            now = start;
        }
        while (!stack.empty() && stack.back().end <= start) close(out, stack, events.keep, lane, now);
        if (!stack.empty()) {
            now = charge(out, stack, lane, now, start);
        } else if (start > now) {
            out.add(-1, lane, now, start);
            now = start;
        }
        stack.push_back({static_cast<int32_t>(i), events.end[i], false});
    }
    while (!stack.empty()) close(out, stack, events.keep, events.lane[events.count - 1], now);
    return out;
}

// For each event the innermost one before it, of those that may be around others, that has not ended when it begins; -1 for none. deep: the
// first event with which more than `most` are open; -1 where none is.
struct Callers {
    std::vector<int64_t> of;
    int64_t deep = -1;
};

Callers find_callers(const Events& events, size_t most) {
    Callers out;
    out.of.reserve(events.count);
    std::vector<int64_t> open;
    for (size_t i = 0; i < events.count && out.deep < 0; ++i) {
        if (i && events.lane[i] != events.lane[i - 1]) open.clear();
        while (!open.empty() && events.end[open.back()] <= events.start[i]) open.pop_back();
        out.of.push_back(open.empty() ? -1 : open.back());
        if (events.keep[i]) open.push_back(int64_t(i));
        if (open.size() > most) out.deep = int64_t(i);
    }
    return out;
}

nb::tuple callers(In<int32_t> lane, In<int64_t> start, In<int64_t> end, In<uint8_t> encloses, size_t most) {
    same_length(lane.size(), {start.size(), end.size(), encloses.size()});
    Callers out;
    {
        nb::gil_scoped_release release;
        out = find_callers({lane.size(), lane.data(), start.data(), end.data(), encloses.data()}, most);
    }
    return nb::make_tuple(hand_over(std::move(out.of)), out.deep);
}

// The slices, for Python.
struct Columns {
    nb::object event, lane, start, end;
};

Columns slices(In<int32_t> lane, In<int64_t> start, In<int64_t> end, In<uint8_t> keep) {
    same_length(lane.size(), {start.size(), end.size(), keep.size()});
    Slices out;
    {
        nb::gil_scoped_release release;
        out = cut({lane.size(), lane.data(), start.data(), end.data(), keep.data()});
    }
    return {nb::cast(hand_over(std::move(out.event))), nb::cast(hand_over(std::move(out.lane))), nb::cast(hand_over(std::move(out.start))),
            nb::cast(hand_over(std::move(out.end)))};
}

}  // namespace

NB_MODULE(_slices, m) {
    m.doc() = "Self-time slices of nested host events";
    nb::class_<Columns>(m, "Slices", "Pieces of threads that follow one another.")
        .def_ro("event", &Columns::event)
        .def_ro("lane", &Columns::lane)
        .def_ro("start", &Columns::start)
        .def_ro("end", &Columns::end);
    m.def("callers", &callers, "lane"_a, "start"_a, "end"_a, "encloses"_a, "most"_a);
    m.def("slices", &slices, "lane"_a, "start"_a, "end"_a, "keep"_a);
}
