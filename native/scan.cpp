#include <nanobind/nanobind.h>
NB_MODULE(_scan, m) {}
