// Simulation of a dependency graph: the event loop, freezing to edges, sweeps. Python checks and owns every column.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <new>
#include <tuple>

#include "engine_check.hpp"
#include "engine_frozen.hpp"
#include "engine_graph.hpp"
#include "engine_loop.hpp"

namespace nb = nanobind;
using namespace lumos;

template <typename T>
using In = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <typename T>
using Out = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

using Stuck = std::tuple<std::vector<int32_t>, std::vector<int32_t>, std::vector<int32_t>>;

static Stuck stuck(const Cycle& cycle) { return {cycle.tasks, cycle.kinds, cycle.missing}; }

// The columns of one graph, kept alive together.
struct Tables {
    std::vector<std::shared_ptr<void>> owners;
    View view{};

    template <typename T>
    const T* keep(const In<T>& array) {
        owners.push_back(std::make_shared<In<T>>(array));
        return array.data();
    }

    Tables(In<int64_t> duration, In<int32_t> processor, In<uint8_t> kind, In<int64_t> pred_offset, In<int32_t> pred, In<uint8_t> pred_kind,
           In<int32_t> rank_of, In<uint8_t> is_stream, In<int32_t> device_of, int32_t devices, In<int64_t> lag, In<int32_t> release_task,
           In<int64_t> release_time, In<int64_t> rendezvous_offset, In<int32_t> rendezvous_task, In<int32_t> queue_depth,
           In<int32_t> wait_task, In<int32_t> wait_target, In<int32_t> occupancy_task, In<float> occupancy_share,
           In<int64_t> occupancy_hold, uint32_t ignored) {
        view.tasks = int32_t(duration.size());
        view.processors = int32_t(rank_of.size());
        view.ranks = int32_t(queue_depth.size());
        view.duration = keep(duration);
        view.processor = keep(processor);
        view.kind = keep(kind);
        view.pred_offset = keep(pred_offset);
        view.pred = keep(pred);
        view.pred_kind = keep(pred_kind);
        view.rank_of = keep(rank_of);
        view.is_stream = keep(is_stream);
        view.device_of = keep(device_of);
        view.devices = devices;
        view.lag = keep(lag);
        view.releases = int64_t(release_task.size());
        view.release_task = keep(release_task);
        view.release_time = keep(release_time);
        view.sets = int64_t(rendezvous_offset.size()) - 1;
        view.set_offset = keep(rendezvous_offset);
        view.set_task = keep(rendezvous_task);
        view.queue_depth = keep(queue_depth);
        view.waits = int64_t(wait_task.size());
        view.wait_task = keep(wait_task);
        view.wait_target = keep(wait_target);
        view.occupancies = int64_t(occupancy_task.size());
        view.occupancy_task = keep(occupancy_task);
        view.occupancy_share = keep(occupancy_share);
        view.occupancy_hold = keep(occupancy_hold);
        view.ignored = ignored;
    }
};

static std::string check_tables(const Tables& tables) {
    nb::gil_scoped_release release;
    return check(tables.view);
}

static Stuck simulate(const Tables& tables, In<int64_t> duration, Out<int64_t> start, Out<int64_t> end) {
    Cycle cycle;
    {
        nb::gil_scoped_release release;
        cycle = Loop(tables.view, duration.data(), start.data(), end.data()).run();
    }
    return stuck(cycle);
}

template <typename T>
static nb::object hand_over(std::vector<T>&& values) {
    auto* owned = new std::vector<T>(std::move(values));
    nb::capsule owner(owned, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
    return nb::ndarray<nb::numpy, T, nb::ndim<1>>(owned->data(), {owned->size()}, owner).cast();
}

static nb::tuple freeze(const Tables& tables) {
    Frozen frozen;
    {
        nb::gil_scoped_release release;
        frozen = Freezer(tables.view).run();
    }
    const Stuck why = stuck(frozen.cycle);
    return nb::make_tuple(hand_over(std::move(frozen.order)), hand_over(std::move(frozen.rank)), hand_over(std::move(frozen.pred_offset)),
                          hand_over(std::move(frozen.pred)), hand_over(std::move(frozen.pred_kind)),
                          hand_over(std::move(frozen.special_at)), hand_over(std::move(frozen.special_size)),
                          hand_over(std::move(frozen.slot)), hand_over(std::move(frozen.pred_slot)), frozen.slots, why);
}

static Sweep make_sweep(const Tables& tables, const In<int32_t>& order, const In<int32_t>& rank, const In<int64_t>& pred_offset,
                        const In<int32_t>& pred, const In<uint8_t>& pred_kind, const In<int64_t>& special_at,
                        const In<int32_t>& special_size) {
    return {
        tables.view,       order.data(),       rank.data(), pred_offset.data(), pred.data(), pred_kind.data(), int64_t(special_at.size()),
        special_at.data(), special_size.data()};
}

static void sweep(const Tables& tables, In<int32_t> order, In<int32_t> rank, In<int64_t> pred_offset, In<int32_t> pred,
                  In<uint8_t> pred_kind, In<int64_t> special_at, In<int32_t> special_size, In<int64_t> duration, Out<int64_t> start,
                  Out<int64_t> end) {
    const Sweep run = make_sweep(tables, order, rank, pred_offset, pred, pred_kind, special_at, special_size);
    nb::gil_scoped_release release;
    run.one(duration.data(), start.data(), end.data());
}

template <class T>
struct Aligned {
    struct Free {
        void operator()(T* data) const { ::operator delete[](data, std::align_val_t(sizeof(T))); }
    };
    std::unique_ptr<T[], Free> data;
    explicit Aligned(size_t n) : data(new (std::align_val_t(sizeof(T))) T[n]) {}
};

// durations and ends: [k, n] flat, row by row; ends may be empty. makespan: [k].
static void sweep_many(const Tables& tables, In<int32_t> order, In<int32_t> rank, In<int64_t> pred_offset, In<int32_t> pred,
                       In<uint8_t> pred_kind, In<int64_t> special_at, In<int32_t> special_size, In<int32_t> slot, In<int32_t> pred_slot,
                       int64_t slots, In<int64_t> durations, Out<int64_t> makespan, Out<int64_t> ends) {
    const Sweep run = make_sweep(tables, order, rank, pred_offset, pred, pred_kind, special_at, special_size);
    const size_t n = size_t(tables.view.tasks), k = makespan.size();
    nb::gil_scoped_release release;
    const Aligned<Lanes> held{size_t(slots)};
    for (size_t from = 0; from < k; from += LANES) {
        Batch batch{};
        batch.sweep = &run, batch.slot = slot.data(), batch.pred_slot = pred_slot.data(), batch.held = held.data.get();
        for (size_t j = 0; j < LANES; ++j) {
            const size_t row = std::min(from + j, k - 1);  // spare lanes repeat the last configuration
            batch.duration[j] = durations.data() + row * n;
            batch.ends[j] = ends.size() ? ends.data() + row * n : nullptr;
        }
        batch.run();
        for (size_t j = 0; j < LANES && from + j < k; ++j) makespan.data()[from + j] = n ? batch.last[j] - batch.first[j] : 0;
    }
}

// The same for the graph's own durations (base, [n]) times factors: [k, groups] flat; group: [n], of every task.
// mark: [n]. spans: [k, 3] flat, the earliest start and latest end of tasks marked 1, the latest end of those marked 2.
static void sweep_scaled(const Tables& tables, In<int32_t> order, In<int32_t> rank, In<int64_t> pred_offset, In<int32_t> pred,
                         In<uint8_t> pred_kind, In<int64_t> special_at, In<int32_t> special_size, In<int32_t> slot, In<int32_t> pred_slot,
                         int64_t slots, In<int64_t> base, In<uint16_t> group, In<double> factors, In<uint8_t> mark, Out<int64_t> spans) {
    const Sweep run = make_sweep(tables, order, rank, pred_offset, pred, pred_kind, special_at, special_size);
    const size_t k = spans.size() / 3, groups = k ? factors.size() / k : 0;
    nb::gil_scoped_release release;
    const Aligned<Lanes> held{size_t(slots)};
    const Aligned<Factors> factor{groups};
    for (size_t from = 0; from < k; from += LANES) {
        Batch batch{};
        batch.sweep = &run, batch.slot = slot.data(), batch.pred_slot = pred_slot.data(), batch.held = held.data.get();
        batch.mark = mark.data();
        batch.base = base.data(), batch.group = group.data(), batch.factor = factor.data.get();
        for (size_t g = 0; g < groups; ++g)
            for (size_t j = 0; j < LANES; ++j) factor.data[g][j] = factors.data()[std::min(from + j, k - 1) * groups + g];
        batch.run();
        for (size_t j = 0; j < LANES && from + j < k; ++j) {
            int64_t* span = spans.data() + (from + j) * 3;
            span[0] = batch.first[j], span[1] = batch.last[j], span[2] = batch.before[j];
        }
    }
}

NB_MODULE(_engine, m) {
    nb::class_<Tables>(m, "Tables")
        .def(nb::init<In<int64_t>, In<int32_t>, In<uint8_t>, In<int64_t>, In<int32_t>, In<uint8_t>, In<int32_t>, In<uint8_t>, In<int32_t>,
                      int32_t, In<int64_t>, In<int32_t>, In<int64_t>, In<int64_t>, In<int32_t>, In<int32_t>, In<int32_t>, In<int32_t>,
                      In<int32_t>, In<float>, In<int64_t>, uint32_t>(),
             nb::arg("duration"), nb::arg("processor"), nb::arg("kind"), nb::arg("pred_offset"), nb::arg("pred"), nb::arg("pred_kind"),
             nb::arg("rank_of"), nb::arg("is_stream"), nb::arg("device_of"), nb::arg("devices"), nb::arg("lag"), nb::arg("release_task"),
             nb::arg("release_time"), nb::arg("rendezvous_offset"), nb::arg("rendezvous_task"), nb::arg("queue_depth"),
             nb::arg("wait_task"), nb::arg("wait_target"), nb::arg("occupancy_task"), nb::arg("occupancy_share"), nb::arg("occupancy_hold"),
             nb::arg("ignored"))
        .def("check", &check_tables);
    m.def("simulate", &simulate);
    m.def("freeze", &freeze);
    m.def("sweep", &sweep);
    m.def("sweep_many", &sweep_many);
    m.def("sweep_scaled", &sweep_scaled);
}
