#include <nanobind/nanobind.h>
NB_MODULE(_engine, m) {}
