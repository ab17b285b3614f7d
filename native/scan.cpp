// The Python interface of the scanner, which turns profiler JSON into columns as it is read.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <tuple>
#include <vector>

#include "scan_document.hpp"

namespace nb = nanobind;
using namespace nb::literals;

NB_MODULE(_scan, m) {
    using scan::Scanned;
    using scan::Scanner;
    using scan::SparseColumn;
    using scan::Texts;
    m.doc() = "Profiler JSON to columns, streamed.";
    static PyObject* error = PyErr_NewException("lumos._scan.ScanError", PyExc_ValueError, nullptr);
    m.attr("ScanError") = nb::borrow(error);
    nb::register_exception_translator([](const std::exception_ptr& p, void*) {
        try {
            std::rethrow_exception(p);
        } catch (const scan::ScanError& problem) {
            nb::object args = nb::make_tuple(problem.offset, problem.reason, problem.limit);
            PyErr_SetObject(error, args.ptr());
        }
    });
    m.attr("CORRELATION") = scan::CORRELATION;
    m.attr("EXTERNAL_ID") = scan::EXTERNAL_ID;
    nb::class_<SparseColumn>(m, "SparseColumn", "An argument that some rows have.")
        .def_ro("rows", &SparseColumn::rows)
        .def_ro("values", &SparseColumn::values)
        .def_ro("unreadable", &SparseColumn::unreadable)
        .def_ro("overflow", &SparseColumn::overflow);
    nb::class_<Texts>(m, "Texts", "Distinct texts, one behind the other.").def_ro("text", &Texts::text).def_ro("offsets", &Texts::offsets);
    nb::class_<Scanned>(m, "Scanned", "What a scanner made of a document.")
        .def_ro("start", &Scanned::start)
        .def_ro("duration", &Scanned::duration)
        .def_ro("name", &Scanned::name)
        .def_ro("lane", &Scanned::lane)
        .def_ro("correlation", &Scanned::correlation)
        .def_ro("external_id", &Scanned::external_id)
        .def_ro("class_", &Scanned::event_class)
        .def_ro("columns", &Scanned::columns)
        .def_ro("strings", &Scanned::strings)
        .def_ro("lanes", &Scanned::lanes)
        .def_ro("classes", &Scanned::classes)
        .def_ro("counts", &Scanned::counts)
        .def_ro("header", &Scanned::header)
        .def_ro("repairs", &Scanned::repairs);
    nb::class_<Scanner>(m, "Scanner")
        .def(nb::init<const std::vector<std::string>&, const std::vector<std::tuple<std::string, int>>&, int, bool>(), "kinds"_a, "keys"_a,
             "id_column"_a, "repair"_a = false)
        .def(
            "feed",
            [](Scanner& self, nb::handle block) {
                Py_buffer view;
                if (PyObject_GetBuffer(block.ptr(), &view, PyBUF_SIMPLE)) throw nb::python_error();
                struct Release {
                    Py_buffer* view;
                    ~Release() { PyBuffer_Release(view); }
                } release{&view};
                nb::gil_scoped_release without_gil;
                self.feed(static_cast<const char*>(view.buf), static_cast<size_t>(view.len));
            },
            "block"_a)
        .def("finish", &Scanner::finish, nb::call_guard<nb::gil_scoped_release>())
        .def("take", &Scanner::take)
        .def_prop_ro("offset", &Scanner::offset)
        .def_prop_ro("complete_offset", &Scanner::complete_offset)
        .def_prop_ro("rows", &Scanner::rows)
        .def_prop_ro("saw_document", &Scanner::saw_document)
        .def_prop_ro("saw_events", &Scanner::saw_events);
}
