// Nested host events to self-time slices: the inner loop of graph/threads.py.
//
// A profiler's host rows nest on their thread. A dependency graph needs the opposite: the thread's time cut into
// pieces that follow one another, each charged to the innermost row running then, so that no time counts twice.

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <vector>

namespace nb = nanobind;

namespace {

template <typename T>
using In = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <typename T>
using Out = nb::ndarray<nb::numpy, T, nb::ndim<1>>;

template <typename T>
Out<T> hand_over(std::vector<T>&& values) {
    auto* owned = new std::vector<T>(std::move(values));
    nb::capsule owner(owned, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
    return Out<T>(owned->data(), {owned->size()}, owner);
}

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

}  // namespace

NB_MODULE(_slices, m) {
    m.doc() = "Self-time slices of nested host events";
    m.def(
        "slices",
        [](In<int32_t> lane, In<int64_t> start, In<int64_t> end, In<uint8_t> keep) {
            const size_t n = lane.shape(0);
            if (start.shape(0) != n || end.shape(0) != n || keep.shape(0) != n) throw std::invalid_argument("columns differ in length");
            Slices out;
            {
                nb::gil_scoped_release release;
                const int32_t* lanes = lane.data();
                const int64_t *starts = start.data(), *ends = end.data();
                const uint8_t* keeps = keep.data();
                out.event.reserve(2 * n);
                out.lane.reserve(2 * n);
                out.start.reserve(2 * n);
                out.end.reserve(2 * n);
                std::vector<Open> stack;
                int64_t now = 0;
                for (size_t i = 0; i < n; ++i) {
                    const bool first = i == 0 || lanes[i] != lanes[i - 1];
                    if (first) {
                        while (!stack.empty()) close(out, stack, keeps, lanes[i - 1], now);
                        now = starts[i];
                    }
                    while (!stack.empty() && stack.back().end <= starts[i]) close(out, stack, keeps, lanes[i], now);
                    if (stack.empty()) {
                        if (starts[i] > now) out.add(-1, lanes[i], now, starts[i]);
                        if (starts[i] > now) now = starts[i];
                    } else {
                        now = charge(out, stack, lanes[i], now, starts[i]);
                    }
                    stack.push_back({static_cast<int32_t>(i), ends[i], false});
                }
                while (!stack.empty()) close(out, stack, keeps, lanes[n - 1], now);
            }
            return nb::make_tuple(hand_over(std::move(out.event)), hand_over(std::move(out.lane)), hand_over(std::move(out.start)),
                                  hand_over(std::move(out.end)));
        },
        nb::arg("lane"), nb::arg("start"), nb::arg("end"), nb::arg("keep"),
        "Cut nested events into slices (event, lane, start, end).\n\n"
        "Events are sorted by (lane, start, -end). A slice's event is the index of the innermost event running, or -1\n"
        "between events of one lane. Zero-length slices are left out, except of events with `keep` set, which always\n"
        "get at least one. Where nesting overlaps, the earlier event keeps the time until the later one starts.");
}
