// Simulation of a dependency graph: the event loop, frozen graphs and their sweeps. Python checks and owns every column.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <new>

#include "arrays.hpp"
#include "engine_check.hpp"
#include "engine_loop.hpp"
#include "engine_path.hpp"
#include "engine_sweep.hpp"

using namespace lumos;
using namespace nb::literals;

// The columns of one graph, kept alive together. The loops read them only after `check_tables` found nothing wrong.
struct Tables {
    std::vector<std::shared_ptr<void>> owners;
    View view{};
    bool checked = false;

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
        const size_t tasks = duration.size(), ranks = queue_depth.size();
        same_length(tasks, {processor.size(), kind.size(), pred_offset.size() - 1});
        same_length(pred.size(), {pred_kind.size(), size_t(pred_offset.data()[tasks])});
        same_length(rank_of.size(), {is_stream.size(), device_of.size()});
        same_length(ranks * DEPENDENCIES, {lag.size()});
        same_length(release_task.size(), {release_time.size()});
        if (rendezvous_offset.size() == 0) throw std::invalid_argument("rendezvous_offset is empty");
        same_length(rendezvous_task.size(), {size_t(rendezvous_offset.data()[rendezvous_offset.size() - 1])});
        same_length(wait_task.size(), {wait_target.size()});
        same_length(occupancy_task.size(), {occupancy_share.size(), occupancy_hold.size()});
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

static std::string check_tables(Tables& tables) {
    nb::gil_scoped_release release;
    std::string wrong = check(tables.view);
    tables.checked = wrong.empty();
    return wrong;
}

static const View& checked_view(const Tables& tables) {
    if (!tables.checked) throw std::invalid_argument("tables that check() has not found sound");
    return tables.view;
}

static Cycle simulate(const Tables& tables, In<int64_t> duration, Out<int64_t> start, Out<int64_t> end) {
    const View& view = checked_view(tables);
    same_length(size_t(view.tasks), {duration.size(), start.size(), end.size()});
    nb::gil_scoped_release release;
    return Loop(view, duration.data(), start.data(), end.data()).run();
}

// Room for so many lines, each of which begins at a multiple of its size.
template <class T>
struct Aligned {
    struct Free {
        void operator()(T* data) const { ::operator delete[](data, std::align_val_t(LINE)); }
    };
    std::unique_ptr<T[], Free> data;
    explicit Aligned(size_t lines) : data(new (std::align_val_t(LINE)) T[lines * LANES]) {}
};

// A frozen graph as Python sees it: its columns, and the tables that they were made from, which must outlive it.
class FrozenGraph {
  public:
    explicit FrozenGraph(const Tables& tables) : g_(tables.view), columns_(Freezer(tables.view).run()) {}

    const Cycle& cycle() const { return columns_.cycle; }

    template <auto MEMBER>
    auto column() const {
        const auto& values = columns_.*MEMBER;
        using T = typename std::decay_t<decltype(values)>::value_type;
        return nb::ndarray<nb::numpy, const T, nb::ndim<1>>(values.data(), {values.size()}, nb::find(this));
    }

    void sweep(In<int64_t> duration, Out<int64_t> start, Out<int64_t> end) const {
        check_lengths({duration.size(), start.size(), end.size()});
        const Sweep run(g_, columns_);
        nb::gil_scoped_release release;
        run.one(duration.data(), start.data(), end.data());
    }

    // durations: [k, n]; makespan: [k]; ends: [k, n], or [0, n] where the ends of tasks are not needed.
    void sweep_many(In2<int64_t> durations, Out<int64_t> makespan, Out2<int64_t> ends) const {
        const size_t n = size_t(g_.tasks), k = durations.shape(0);
        check_lengths({durations.shape(1), ends.shape(1)});
        same_length(k, {makespan.size(), ends.shape(0) ? ends.shape(0) : k});
        nb::gil_scoped_release release;
        each_batch(k, 1, [&](Batch& batch, const size_t (&rows)[LANES], const int64_t* first, const int64_t* last) {
            for (size_t j = 0; j < LANES; ++j) {
                batch.duration[j] = durations.data() + rows[j] * n;
                batch.ends[j] = ends.shape(0) ? ends.data() + rows[j] * n : nullptr;
            }
            batch.run();
            for (size_t j = 0; j < LANES; ++j) makespan.data()[rows[j]] = n ? last[j] - first[j] : 0;
        });
    }

    // Sweeps in which the duration of task t is the graph's own times factors[c, scaled[t]] in configuration c. factors: [k, kinds];
    // scaled: [n]; group, by position in the order: [n], -1 for none; first, last: [k, groups], earliest starts and latest ends.
    void sweep_scaled(In<uint16_t> scaled, In2<double> factors, In<int32_t> group, Out2<int64_t> first, Out2<int64_t> last) const {
        const size_t k = factors.shape(0), kinds = factors.shape(1), groups = first.shape(1);
        check_lengths({scaled.size(), group.size()});
        same_length(k, {first.shape(0), last.shape(0)});
        same_length(groups, {last.shape(1)});
        check_values("scaled", scaled, 0, int64_t(kinds));
        check_values("group", group, -1, int64_t(groups));
        nb::gil_scoped_release release;
        const Aligned<double> factor{kinds};
        each_batch(k, groups, [&](Batch& batch, const size_t (&rows)[LANES], const int64_t* begin, const int64_t* end) {
            batch.base = g_.duration, batch.group = scaled.data(), batch.factor = factor.data.get(), batch.within = group.data();
            for (size_t i = 0; i < kinds; ++i)
                for (size_t j = 0; j < LANES; ++j) factor.data[i * LANES + j] = factors.data()[rows[j] * kinds + i];
            batch.run();
            for (size_t j = 0; j < LANES; ++j)
                for (size_t i = 0; i < groups; ++i) {
                    first.data()[rows[j] * groups + i] = begin[i * LANES + j];
                    last.data()[rows[j] * groups + i] = end[i * LANES + j];
                }
        });
    }

    // One sweep in which the task at position i of the order takes duration[source[i]]. group: [n], -1 for none. first, last: [groups], the
    // earliest start and latest end of the tasks of each.
    void sweep_groups(In<int64_t> duration, In<int32_t> source, In<int32_t> group, Out<int64_t> first, Out<int64_t> last) const {
        check_lengths({source.size(), group.size()});
        same_length(first.size(), {last.size()});
        std::vector<int64_t> held(size_t(columns_.slots));
        std::fill_n(first.data(), first.size(), std::numeric_limits<int64_t>::max());
        std::fill_n(last.data(), last.size(), UNSET);
        bool sound;
        {
            nb::gil_scoped_release release;
            sound = Sweep(g_, columns_)
                        .by_group({duration.data(), int64_t(duration.size()), source.data(), group.data(), int64_t(first.size()),
                                   columns_.slot.data(), columns_.pred_slot.data(), held.data(), first.data(), last.data()});
        }
        if (!sound) throw std::invalid_argument("a source or group is out of range");
    }

    void causes(In<int64_t> end, Out<int32_t> task, Out<uint8_t> kind, Out<int64_t> ready) const {
        check_lengths({end.size(), task.size(), kind.size(), ready.size()});
        nb::gil_scoped_release release;
        find_causes(g_, columns_, end.data(), {task.data(), kind.data(), ready.data()});
    }

    void latest_ends(In<int32_t> sequence, In<int32_t> set, In<int32_t> holder, In<int64_t> early, In<int64_t> start, In<int64_t> began,
                     In<int64_t> end, Out<int64_t> late) const {
        check_lengths({sequence.size(), set.size(), holder.size(), early.size(), start.size(), began.size(), end.size(), late.size()});
        check_values("sequence", sequence, 0, g_.tasks);
        check_values("holder", holder, -1, g_.tasks);
        nb::gil_scoped_release release;
        bound_ends(g_, columns_, {sequence.data(), set.data(), holder.data(), early.data(), start.data(), end.data(), began.data()},
                   late.data());
    }

  private:
    const View& g_;
    Frozen columns_;

    // ValueError in Python where a column has another length than the graph has tasks, or where the graph has no order.
    void check_lengths(std::initializer_list<size_t> lengths) const {
        if (!columns_.cycle.empty()) throw std::invalid_argument("tasks wait for each other: the graph has no order");
        same_length(size_t(g_.tasks), lengths);
    }

    template <typename T>
    static void check_values(const char* name, const In<T>& values, int64_t least, int64_t end) {
        for (size_t i = 0; i < values.size(); ++i)
            if (int64_t(values.data()[i]) < least || int64_t(values.data()[i]) >= end)
                throw std::invalid_argument(detail::outside(name, int64_t(i), values.data()[i], end));
    }

    // Visits the rows of k configurations LANES at a time; spare lanes repeat the last one. With each batch come its earliest starts and
    // latest ends, [groups * LANES].
    template <typename Visit>
    void each_batch(size_t k, size_t groups, Visit visit) const {
        const Sweep run(g_, columns_);
        const Aligned<int64_t> held{size_t(columns_.slots)}, first{groups}, last{groups};
        for (size_t from = 0; from < k; from += LANES) {
            size_t rows[LANES];
            for (size_t j = 0; j < LANES; ++j) rows[j] = std::min(from + j, k - 1);
            std::fill_n(first.data.get(), groups * LANES, std::numeric_limits<int64_t>::max());
            std::fill_n(last.data.get(), groups * LANES, UNSET);
            Batch batch{};
            batch.first = first.data.get(), batch.last = last.data.get();
            batch.sweep = &run, batch.slot = columns_.slot.data(), batch.pred_slot = columns_.pred_slot.data(),
            batch.held = held.data.get();
            visit(batch, rows, first.data.get(), last.data.get());
        }
    }
};

static FrozenGraph freeze(const Tables& tables) {
    checked_view(tables);
    nb::gil_scoped_release release;
    return FrozenGraph(tables);
}

NB_MODULE(_engine, m) {
    m.doc() = "Simulation of a dependency graph: the event loop, freezing to edges, sweeps, and the walk back from an end.";
    nb::dict enums;
    enums["Kind"] = Kind_TEXT;
    enums["Dependency"] = Dependency_TEXT;
    m.attr("ENUMS") = enums;

    using Tasks = std::vector<int32_t>;
    nb::class_<Cycle>(m, "Cycle", "Tasks that wait for each other.")
        .def(
            "__init__", [](Cycle* self, Tasks tasks, Tasks kinds, Tasks missing) { new (self) Cycle{tasks, kinds, missing}; }, "tasks"_a,
            "kinds"_a, "missing"_a)
        .def("__bool__", [](const Cycle& cycle) { return !cycle.empty(); })
        .def_ro("tasks", &Cycle::tasks, "Each waits for the one after it, the last for the first.")
        .def_ro("kinds", &Cycle::kinds, "By which kind of dependency each of them waits.")
        .def_ro("missing", &Cycle::missing, "Of the first rendezvous among them, the members that never arrive.");
    nb::class_<Tables>(m, "Tables", "The columns of a graph, as the loops read them.")
        .def(nb::init<In<int64_t>, In<int32_t>, In<uint8_t>, In<int64_t>, In<int32_t>, In<uint8_t>, In<int32_t>, In<uint8_t>, In<int32_t>,
                      int32_t, In<int64_t>, In<int32_t>, In<int64_t>, In<int64_t>, In<int32_t>, In<int32_t>, In<int32_t>, In<int32_t>,
                      In<int32_t>, In<float>, In<int64_t>, uint32_t>(),
             "duration"_a, "processor"_a, "kind"_a, "pred_offset"_a, "pred"_a, "pred_kind"_a, "rank_of"_a, "is_stream"_a, "device_of"_a,
             "devices"_a, "lag"_a, "release_task"_a, "release_time"_a, "rendezvous_offset"_a, "rendezvous_task"_a, "queue_depth"_a,
             "wait_task"_a, "wait_target"_a, "occupancy_task"_a, "occupancy_share"_a, "occupancy_hold"_a, "ignored"_a)
        .def("check", &check_tables, "What is wrong with the columns, by name and index; empty where nothing is.");
    nb::class_<FrozenGraph>(m, "FrozenGraph", "A graph with every dependency as an edge. Its arrays are read-only.")
        .def_prop_ro("cycle", &FrozenGraph::cycle, "Why there is no order; its columns are not whole then.")
        .def_prop_ro("order", &FrozenGraph::column<&Frozen::order>, "int32[n]: the tasks in a topological order.")
        .def_prop_ro("pred_offset", &FrozenGraph::column<&Frozen::pred_offset>,
                     "int64[n + 1]: where in `pred` the predecessors of each position in the order begin.")
        .def_prop_ro("pred", &FrozenGraph::column<&Frozen::pred>, "int32[m]: predecessors, as task ids.")
        .def_prop_ro("pred_kind", &FrozenGraph::column<&Frozen::pred_kind>, "uint8[m]: kinds of these dependencies.")
        .def("sweep", &FrozenGraph::sweep, "duration"_a, "start"_a.noconvert(), "end"_a.noconvert())
        .def("sweep_many", &FrozenGraph::sweep_many, "durations"_a, "makespan"_a.noconvert(), "ends"_a.noconvert())
        .def("sweep_scaled", &FrozenGraph::sweep_scaled, "scaled"_a, "factors"_a, "group"_a, "first"_a.noconvert(), "last"_a.noconvert())
        .def("sweep_groups", &FrozenGraph::sweep_groups, "duration"_a, "source"_a, "group"_a, "first"_a.noconvert(), "last"_a.noconvert())
        .def("causes", &FrozenGraph::causes, "end"_a, "task"_a.noconvert(), "kind"_a.noconvert(), "ready"_a.noconvert())
        .def("latest_ends", &FrozenGraph::latest_ends, "sequence"_a, "set"_a, "holder"_a, "early"_a, "start"_a, "began"_a, "end"_a,
             "late"_a.noconvert());
    m.def("simulate", &simulate, "tables"_a, "duration"_a, "start"_a.noconvert(), "end"_a.noconvert());
    m.def("freeze", &freeze, "tables"_a, nb::keep_alive<0, 1>());
}
