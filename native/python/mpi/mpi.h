// The part of Open MPI's binary interface that MLX's backend "mpi" asks for, over groups of the fabric.
//
// MLX opens the library that MLX_MPI_LIBNAME names, here this module itself, and looks up 14 functions and 16 objects,
// whose addresses are the handles of communicators, types and operations. It looks at no return code of what it runs on
// its streams, but keeps the first exception there and raises it in Python: so failures are exceptions.
#pragma once

#include <Python.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "group/group.h"

namespace ferrule::mpi {

// What an MPI_Comm points to. Without a destructor: threads of MLX may still come by while the process ends.
struct Communicator {
  Group* group = nullptr;  // nullptr: of a process by itself
  int rank = 0;
  int size = 1;
  double timeout = 0;                                // seconds of an operation
  const std::vector<std::string>* places = nullptr;  // for people, by rank: "rank 1 on host-b (…)"
  PyObject* owner = nullptr;                         // a Communicator of ferrule.mlx_backend; never let go
};

// What an MPI_Datatype points to: `parts` numbers of type `dtype`. MLX makes two of opaque bytes for 16-bit floats.
struct Datatype {
  Dtype dtype = Dtype::u8;
  std::size_t parts = 1;
  bool opaque = false;  // only its size is known

  std::size_t bytes() const { return parts * size_of(dtype); }
};

using UserFunction = void(void* in, void* inout, int* count, Datatype** type);

// What an MPI_Op points to: a reduction of the fabric, or, where `function` is none of these, that function.
struct Reducer {
  Reduction reduction = Reduction::sum;
  std::optional<Dtype> dtype;  // of the elements, which opaque types do not tell
  UserFunction* function = nullptr;
};

// Which of the fabric's reductions of 16-bit floats `function` is, found by having it reduce samples.
std::optional<Reducer> recognise(UserFunction* function);

// The world as the environment describes it; throws std::runtime_error with Python's words.
void open_world(Communicator& world);
// A new communicator of the ranks with the same color; nullptr where this rank is in none. Throws the same.
Communicator* split(const Communicator& from, int color, int key);
void free(Communicator& communicator) noexcept;

}  // namespace ferrule::mpi
