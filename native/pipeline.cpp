// Pipelines: the order of the passes, what the stages hold in memory, and the step times of many plans. Python checks and owns every
// column.
#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <map>

#include "arrays.hpp"
#include "pipeline_memory.hpp"
#include "pipeline_order.hpp"
#include "pipeline_time.hpp"

using namespace lumos;
using namespace lumos::pipeline;
using namespace nb::literals;

using Layers = In2<int64_t>;  // [stage, chunk held]

// (pass, microbatch, chunk), the fields of Action.
static std::vector<std::tuple<int, int, int>> actions(int name, int stage, int stages, int microbatches, int chunks) {
    check_sizes(name, stages, chunks, microbatches);
    if (stage < 0 || stage >= stages) throw std::invalid_argument("no such stage");
    std::vector<std::tuple<int, int, int>> out;
    for (const Action& a : schedule(Schedule(name), stage, stages, microbatches, chunks))
        out.emplace_back(int(a.step), a.microbatch, a.chunk);
    return out;
}

static void check_layers(const Layers& layers, size_t stages, size_t held) {
    if (layers.shape(0) != stages || layers.shape(1) != held)
        throw std::invalid_argument("columns or layers do not fit the order of the passes");
}

// The moments at which stages hold most: of the first stage, of the last, and of those between them unless an earlier one holds at least
// as much.
static std::map<int, std::vector<Held>> worst(int name, int stages, int chunks, int microbatches, Layers dense, Layers mixture) {
    check_sizes(name, stages, chunks, microbatches);
    const size_t held = held_chunks(Schedule(name), chunks);
    check_layers(dense, stages, held);
    check_layers(mixture, stages, held);
    std::map<int, std::vector<Held>> out;
    std::vector<std::pair<std::vector<Held>, Held>> seen;  // moments and layers of stages between
    for (int s = 0; s < stages; ++s) {
        const int64_t *d = dense.data() + s * held, *m = mixture.data() + s * held;
        const auto front = most_held(Schedule(name), s, stages, chunks, microbatches, d, m);
        Held layers{};
        for (size_t c = 0; c < held; ++c) layers[0] += d[c], layers[2] += m[c];
        const bool end = s == 0 || s == stages - 1;
        auto below = [&](const auto& other) {
            if (!covers(other.second, layers)) return false;
            return std::all_of(front.begin(), front.end(), [&](const Held& h) {
                return std::any_of(other.first.begin(), other.first.end(), [&](const Held& o) { return covers(o, h); });
            });
        };
        if (!end && std::any_of(seen.begin(), seen.end(), below)) continue;
        if (!end) seen.emplace_back(front, layers);
        if (!front.empty()) out[s] = front;
    }
    return out;
}

// The order of a structure's passes, and the times of plans that share it.
class Passes {
  public:
    Passes(int name, int stages, int chunks, int microbatches, bool holds, bool beside)
        : order_(
              (check_sizes(name, stages, chunks, microbatches), make_order(Schedule(name), stages, chunks, microbatches, holds, beside))) {}

    int size() const { return order_.passes(); }

    // Writes the ns of the plans `rows` of `table` to out[rows]. dense, mixture: layers of the stages' chunks.
    void time(In2<double> table, In<int64_t> rows, Layers dense, Layers mixture, Out<double> out) const {
        if (table.shape(1) != COLUMNS) throw std::invalid_argument("columns or layers do not fit the order of the passes");
        check_layers(dense, size_t(order_.stages), size_t(order_.held));
        check_layers(mixture, size_t(order_.stages), size_t(order_.held));
        same_length(table.shape(0), {out.size()});
        for (size_t i = 0; i < rows.size(); ++i)
            if (rows.data()[i] < 0 || size_t(rows.data()[i]) >= out.size())
                throw std::invalid_argument("rows names a plan beyond the table");
        nb::gil_scoped_release free;
        std::vector<int64_t> by_place[2];
        for (int type = 0; type < 2; ++type) {
            by_place[type].resize(order_.parts);
            for (int s = 0; s < order_.stages; ++s)
                for (int c = 0; c < order_.held; ++c)
                    by_place[type][place_of(order_.name, s, c, order_.stages)] = (type ? mixture : dense).data()[s * order_.held + c];
        }
        Timer timer(order_, {by_place[0].data(), by_place[1].data()});
        Row some[LANES];
        double found[LANES];
        for (size_t at = 0; at < rows.size(); at += LANES) {
            const int count = int(std::min<size_t>(LANES, rows.size() - at));
            for (int lane = 0; lane < count; ++lane) some[lane] = table.data() + rows.data()[at + lane] * COLUMNS;
            timer.run(some, count, found);
            for (int lane = 0; lane < count; ++lane) out.data()[rows.data()[at + lane]] = found[lane];
        }
    }

  private:
    Order order_;
};

NB_MODULE(_pipeline, m) {
    m.doc() = "Pipelines: the order of the passes, what stages hold, and the steps of many plans.";
    nb::dict enums, columns;
    enums["Schedule"] = Schedule_TEXT;
    enums["Pass"] = Pass_TEXT;
    enums["PassKind"] = PassKind_TEXT;
    m.attr("ENUMS") = enums;
    for (const NamedColumn& column : COLUMN_NAMES) columns[column.name] = column.first;
    m.attr("COLUMNS") = columns;
    m.attr("WIDTH") = int(COLUMNS);
    m.def("actions", &actions, "schedule"_a, "stage"_a, "stages"_a, "microbatches"_a, "chunks"_a);
    m.def("worst", &worst, "schedule"_a, "stages"_a, "chunks"_a, "microbatches"_a, "dense"_a, "mixture"_a);
    nb::class_<Passes>(m, "Passes", "The order of a structure's passes, and the times of plans that share it.")
        .def(nb::init<int, int, int, int, bool, bool>(), "schedule"_a, "stages"_a, "chunks"_a, "microbatches"_a, "holds"_a, "beside"_a)
        .def("__len__", &Passes::size)
        .def("time", &Passes::time, "table"_a, "rows"_a, "dense"_a, "mixture"_a, "out"_a.noconvert());
}
