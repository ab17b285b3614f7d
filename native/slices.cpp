#include <nanobind/nanobind.h>
NB_MODULE(_slices, m) {}
