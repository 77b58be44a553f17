#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

namespace nb = nanobind;

NB_MODULE(scaling, m) {
  m.def(
      "scale",
      [](nb::ndarray<float, nb::ndim<1>, nb::device::cpu, nb::c_contig> values, float factor) {
        for (size_t i = 0; i < values.size(); ++i) values(i) *= factor;
      },
      nb::arg("values"), nb::arg("factor"));
}
