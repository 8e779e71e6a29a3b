// Groups are made in Python, where the rendezvous is.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>
#include <tuple>

#include "python/mpi/mpi.h"

namespace nb = nanobind;

namespace ferrule::mpi {
namespace {

// Run `call` with the interpreter's lock. Its error passes through MLX, whose nanobind may be another one, as text
// only.
template <class Call>
auto with_python(Call&& call) {
  std::string said;
  {
    const nb::gil_scoped_acquire gil;
    try {
      return call();
    } catch (const nb::python_error& error) {
      said = nb::str(error.value()).c_str();
    }
  }
  throw std::runtime_error(said);
}

void take(Communicator& into, nb::object owner) {
  const auto [address, rank, size, timeout, places] =
      nb::cast<std::tuple<std::uintptr_t, int, int, double, std::vector<std::string>>>(owner.attr("seat"));
  into.group = reinterpret_cast<Group*>(address);
  into.rank = rank;
  into.size = size;
  into.timeout = timeout;
  into.places = new std::vector<std::string>(places);
  into.owner = owner.release().ptr();
}

}  // namespace

void open_world(Communicator& world) {
  with_python([&] {
    nb::object owner = nb::module_::import_("ferrule.mlx_backend.communicator").attr("open_world")();
    if (!owner.is_none()) take(world, std::move(owner));
  });
}

Communicator* split(const Communicator& from, int color, int key) {
  return with_python([&]() -> Communicator* {
    nb::object owner = nb::borrow(from.owner).attr("split")(color, key);
    if (owner.is_none()) return nullptr;
    auto* const made = new Communicator;
    take(*made, std::move(owner));
    return made;
  });
}

void free(Communicator& communicator) noexcept {
  // MLX also lets its groups go when the process ends, after Python.
  if (communicator.owner == nullptr || Py_IsInitialized() == 0) return;
  try {
    with_python([&] { nb::borrow(communicator.owner).attr("free")(); });
  } catch (const std::exception&) {  // nobody is left to hear it, and the process's end frees the rest
  }
}

}  // namespace ferrule::mpi
