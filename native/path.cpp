// Backward over a frozen graph: which predecessor let each task start, and how late each task may end.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <stdexcept>

namespace nb = nanobind;

template <typename T>
using In = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <typename T>
using Out = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Lag = nb::ndarray<const int64_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;  // [ranks, kinds of dependency]

constexpr int64_t UNBOUNDED = std::numeric_limits<int64_t>::max();

static void same_length(size_t n, std::initializer_list<size_t> lengths) {
    for (const size_t length : lengths)
        if (length != n) throw std::invalid_argument("columns differ in length");
}

// By task: the predecessor whose end plus lag is the latest (the first of equals), its kind, and that time; -1, 0, 0 without one.
static void causes(In<int32_t> order, In<int32_t> rank, In<int64_t> pred_offset, In<int32_t> pred, In<uint8_t> pred_kind, Lag lag,
                   In<int64_t> end, Out<int32_t> cause, Out<uint8_t> kind, Out<int64_t> ready) {
    const size_t n = order.size();
    same_length(n, {rank.size(), pred_offset.size() - 1, end.size(), cause.size(), kind.size(), ready.size()});
    const nb::gil_scoped_release release;
    const size_t kinds = lag.shape(1);
    for (size_t at = 0; at < n; ++at) {
        const int32_t task = order.data()[at];
        const int64_t* lags = lag.data() + size_t(rank.data()[at]) * kinds;
        int64_t latest = std::numeric_limits<int64_t>::min(), found = -1;
        for (int64_t e = pred_offset.data()[at]; e < pred_offset.data()[at + 1]; ++e) {
            const int64_t time = end.data()[pred.data()[e]] + lags[pred_kind.data()[e]];
            if (time > latest) latest = time, found = e;
        }
        cause.data()[task] = found < 0 ? -1 : pred.data()[found];
        kind.data()[task] = found < 0 ? 0 : pred_kind.data()[found];
        ready.data()[task] = found < 0 ? 0 : latest;
    }
}

// late: in, by task, the time by which it must end on its own account (UNBOUNDED: none); out, also for what follows it.
// sequence: positions in `order`, each after all that it waits for. set: by task, its rendezvous (-1 none), whose members are
// neighbours in the sequence. began: by task, when its own work began, in a rendezvous with the last arrival. An edge that the run
// refutes, because the task started before the edge would let it, binds nothing. holder: by task, whose share of the SMs it
// waited for (-1 none); early: by holder, how long before its end it let go.
static void latest_ends(In<int32_t> sequence, In<int32_t> order, In<int32_t> rank, In<int64_t> pred_offset, In<int32_t> pred,
                        In<uint8_t> pred_kind, Lag lag, In<int32_t> set, In<int32_t> holder, In<int64_t> early, In<int64_t> start,
                        In<int64_t> began, In<int64_t> end, Out<int64_t> late) {
    const size_t n = order.size();
    same_length(n, {sequence.size(), rank.size(), pred_offset.size() - 1, set.size(), holder.size(), early.size(), start.size(),
                    began.size(), end.size(), late.size()});
    const nb::gil_scoped_release release;
    const size_t kinds = lag.shape(1);
    const auto task_of = [&](size_t i) { return order.data()[sequence.data()[i]]; };
    int64_t* const bound = late.data();
    for (size_t stop = n, first; stop > 0; stop = first) {
        first = stop - 1;  // of what begins together: one task, or all members of a rendezvous
        const int32_t members = set.data()[task_of(first)];
        while (members >= 0 && first > 0 && set.data()[task_of(first - 1)] == members) --first;
        int64_t begin = UNBOUNDED;
        for (size_t i = first; i < stop; ++i) {
            const int32_t task = task_of(i);
            if (bound[task] != UNBOUNDED) begin = std::min(begin, bound[task] - (end.data()[task] - began.data()[task]));
        }
        if (begin == UNBOUNDED) continue;
        for (size_t i = first; i < stop; ++i) {
            const int32_t task = task_of(i), at = sequence.data()[i], held_by = holder.data()[task];
            const int64_t* lags = lag.data() + size_t(rank.data()[at]) * kinds;
            for (int64_t e = pred_offset.data()[at]; e < pred_offset.data()[at + 1]; ++e) {
                const int32_t before = pred.data()[e];
                const int64_t delay = lags[pred_kind.data()[e]];
                if (end.data()[before] + delay <= start.data()[task]) bound[before] = std::min(bound[before], begin - delay);
            }
            if (held_by >= 0) bound[held_by] = std::min(bound[held_by], begin + early.data()[held_by]);
        }
    }
}

NB_MODULE(_path, m) {
    m.def("causes", &causes);
    m.def("latest_ends", &latest_ends);
}
