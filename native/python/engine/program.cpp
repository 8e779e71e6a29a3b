#include <nanobind/ndarray.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "python/engine/engine.h"
#include "step/experts.h"
#include "step/operations.h"
#include "step/step.h"
#include "step/tokens.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace ferrule {
namespace {

using Floats = std::vector<float>;
using Bytes = nb::ndarray<std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using ViewGiven = std::tuple<std::size_t, std::size_t>;  // register, offset

View view(const ViewGiven& given) { return {std::get<0>(given), std::get<1>(given)}; }

std::vector<CacheLayer> layers_of(const std::vector<std::tuple<std::size_t, std::size_t, std::size_t>>& given) {
  std::vector<CacheLayer> layers;
  for (const auto& [heads, width, value_width] : given) {
    if (width == 0 || width % 2 != 0 || width > kMostWidth || value_width == 0) {
      throw std::invalid_argument("keys have an even width up to " + std::to_string(kMostWidth));
    }
    layers.push_back({heads, width, value_width});
  }
  return layers;
}

// A program, and what it keeps between steps. The matrices and the group that it is given must outlive it: it holds
// on to the Python objects.
class PyProgram {
 public:
  PyProgram(int threads, const std::vector<std::tuple<std::size_t, std::size_t, std::size_t>>& layers, int cached,
            int wire, bool exact, std::uintptr_t group, int group_size, int group_rank, std::uintptr_t context,
            std::size_t context_size, std::size_t context_rank)
      : machine_(threads, KvCache(layers_of(layers), static_cast<Cached>(cached), {context_size, context_rank})),
        program_(machine_) {
    if (context_rank >= context_size || (context_size > 1) != (context != 0)) {
      throw std::invalid_argument("a context has a group of its ranks, or one rank");
    }
    machine_.context = reinterpret_cast<Group*>(context);
    machine_.group = reinterpret_cast<Group*>(group);
    machine_.group_size = group_size;
    machine_.group_rank = group_rank;
    machine_.wire = static_cast<Element>(wire);
    machine_.precision = exact ? Precision::exact : Precision::fast;
  }

  std::size_t add_register(std::size_t width) { return program_.add_register(width); }
  std::size_t add_rotary(Floats frequencies, float factor) {
    machine_.rotary.push_back({std::move(frequencies), factor, {}, {}});
    return machine_.rotary.size() - 1;
  }
  void embed(PyMatrix& table, std::int64_t first, float factor, bool shared, std::size_t to) {
    auto operation = std::make_unique<Embed>();
    if (table.place().pool != nullptr) throw std::invalid_argument("a table of embeddings is in memory");
    hold(operation->table, table);
    operation->first = first;
    operation->factor = factor;
    operation->shared = shared;
    operation->to = to;
    program_.add(std::move(operation));
  }
  void norm(const ViewGiven& from, const ViewGiven& to, std::size_t width, std::size_t count, Floats weight,
            Floats bias, float eps, bool mean) {
    auto operation = std::make_unique<Norm>();
    operation->from = view(from);
    operation->to = view(to);
    operation->width = width;
    operation->count = count;
    operation->weight = std::move(weight);
    operation->bias = std::move(bias);
    operation->eps = eps;
    operation->mean = mean;
    program_.add(std::move(operation));
  }
  void product(const ViewGiven& from, std::size_t to, const std::vector<PyMatrix*>& matrices, Floats bias) {
    if (matrices.empty() || matrices.size() > 4) throw std::invalid_argument("a product has one to four matrices");
    auto operation = std::make_unique<Product>();
    operation->from = view(from);
    operation->to = to;
    hold_all(operation->matrices, matrices);
    operation->bias = std::move(bias);
    program_.add(std::move(operation));
  }
  void adapt(const ViewGiven& from, const ViewGiven& to,
             const std::vector<std::tuple<std::size_t, float, PyMatrix*, PyMatrix*>>& adapters) {
    auto operation = std::make_unique<Adapt>();
    operation->from = view(from);
    operation->to = view(to);
    operation->adapters.reserve(adapters.size());
    for (const auto& [adapter, scale, a, b] : adapters) {
      if (a->packed().layout.rows != b->packed().layout.columns) {
        throw std::invalid_argument("an adapter's matrices do not fit each other");
      }
      Lora& added = operation->adapters.emplace_back();
      added.adapter = adapter;
      added.scale = scale;
      hold(added.a, *a);
      hold(added.b, *b);
    }
    program_.add(std::move(operation));
  }
  void head_product(const ViewGiven& from, std::size_t to, std::size_t from_stride, std::size_t to_stride,
                    std::size_t kept, const std::vector<PyMatrix*>& matrices) {
    auto operation = std::make_unique<HeadProduct>();
    operation->from = view(from);
    operation->to = to;
    operation->from_stride = from_stride;
    operation->to_stride = to_stride;
    operation->kept = kept;
    hold_all(operation->matrices, matrices);
    program_.add(std::move(operation));
  }
  void rotate(const ViewGiven& heads, std::size_t count, std::size_t width, std::size_t table, bool interleaved) {
    auto operation = std::make_unique<Rotate>();
    operation->heads = view(heads);
    operation->count = count;
    operation->width = width;
    operation->table = table;
    operation->interleaved = interleaved;
    program_.add(std::move(operation));
  }
  void attend(const ViewGiven& query, const ViewGiven& key, const ViewGiven& value, std::size_t to, std::size_t layer,
              std::size_t heads, float scale, float softcap, std::int64_t window, Floats sinks) {
    auto operation = std::make_unique<Attend>();
    operation->query = view(query);
    operation->key = view(key);
    operation->value = view(value);
    operation->to = to;
    operation->layer = layer;
    operation->heads = heads;
    operation->scale = scale;
    operation->softcap = softcap;
    operation->window = window;
    operation->sinks = std::move(sinks);
    program_.add(std::move(operation));
  }
  void gate(const ViewGiven& gate, const ViewGiven& up, bool gated, std::size_t to, std::size_t width, int kind) {
    auto operation = std::make_unique<Gate>();
    operation->gate = view(gate);
    operation->up = view(up);
    operation->gated = gated;
    operation->to = to;
    operation->width = width;
    operation->kind = static_cast<Activation>(kind);
    program_.add(std::move(operation));
  }
  void reduce(std::size_t from, std::size_t to, bool add, bool shared, float factor, Floats bias) {
    auto operation = std::make_unique<Reduce>();
    operation->from = from;
    operation->to = to;
    operation->add = add;
    operation->shared = shared;
    operation->factor = factor;
    operation->bias = std::move(bias);
    program_.add(std::move(operation));
  }
  void reduce_scatter(std::size_t reg) {
    auto operation = std::make_unique<ReduceScatter>();
    operation->reg = reg;
    program_.add(std::move(operation));
  }
  void all_gather(std::size_t reg, bool exact) {
    auto operation = std::make_unique<AllGather>();
    operation->reg = reg;
    operation->exact = exact;
    program_.add(std::move(operation));
  }
  void scale(std::size_t reg, float factor, float softcap) {
    auto operation = std::make_unique<Scale>();
    operation->reg = reg;
    operation->factor = factor;
    operation->softcap = softcap;
    program_.add(std::move(operation));
  }
  void select(std::size_t from, std::size_t to) {
    auto operation = std::make_unique<Select>();
    operation->from = from;
    operation->to = to;
    program_.add(std::move(operation));
  }
  void gather(std::size_t from, std::size_t to, const std::vector<std::size_t>& widths) {
    if (widths.size() != 1 && widths.size() != static_cast<std::size_t>(machine_.group_size)) {
      throw std::invalid_argument("a row is joined of one part for each rank, or is whole on each");
    }
    auto operation = std::make_unique<Gather>();
    operation->from = from;
    operation->to = to;
    operation->widths = widths;
    program_.add(std::move(operation));
  }
  // `matrix`: any of the part that operations need from here on, or until here.
  void enter(PyMatrix& matrix) {
    auto operation = std::make_unique<Enter>();
    operation->pool = place_of(matrix).pool;
    operation->part = place_of(matrix).part;
    program_.add(std::move(operation));
  }
  void leave(PyMatrix& matrix) {
    auto operation = std::make_unique<Leave>();
    operation->pool = place_of(matrix).pool;
    program_.add(std::move(operation));
  }
  // `matrices` and `biases`: of each expert those of gate and up together, then those of down; biases may be empty.
  void experts(const ViewGiven& x, std::size_t logits, std::size_t to, std::size_t total, std::size_t chosen,
               int scoring, bool normalize, float factor, Floats choice_bias, std::size_t groups,
               std::size_t chosen_groups, std::size_t group_best, std::size_t first, int sharing,
               const std::vector<std::size_t>& bounds, std::size_t inner, int kind, bool interleaved,
               const std::vector<PyMatrix*>& matrices, const std::vector<Floats>& biases) {
    if (matrices.size() % 2 != 0 || (!biases.empty() && biases.size() != matrices.size())) {
      throw std::invalid_argument("an expert has two matrices, and two biases or none");
    }
    const auto ranks = static_cast<std::size_t>(machine_.group_size);
    const bool exchanged = static_cast<Sharing>(sharing) != Sharing::masked;
    if (exchanged && (bounds.size() != ranks + 1 || bounds.back() != total || first != bounds[own_rank()] ||
                      first + matrices.size() / 2 != bounds[own_rank() + 1])) {
      throw std::invalid_argument("experts go to the ranks that have them: bounds say of each which it has");
    }
    auto operation = std::make_unique<Experts>();
    operation->x = view(x);
    operation->logits = logits;
    operation->to = to;
    operation->total = total;
    operation->chosen = chosen;
    operation->scoring = static_cast<Scoring>(scoring);
    operation->normalize = normalize;
    operation->factor = factor;
    operation->choice_bias = std::move(choice_bias);
    operation->groups = groups;
    operation->chosen_groups = chosen_groups;
    operation->group_best = group_best;
    operation->first = first;
    operation->sharing = static_cast<Sharing>(sharing);
    operation->bounds = bounds;
    operation->inner = inner;
    operation->kind = static_cast<Activation>(kind);
    operation->interleaved = interleaved;
    operation->experts.resize(matrices.size() / 2);  // they stay where they are
    for (std::size_t i = 0; i < matrices.size(); i += 2) {
      Expert& expert = operation->experts[i / 2];
      const PyMatrix::Place& place = matrices[i]->place();
      if (place.pool != matrices[i + 1]->place().pool || place.part != matrices[i + 1]->place().part ||
          (i > 0 && place.pool != operation->pool)) {
        throw std::invalid_argument("experts are parts of one pool, or all in memory");
      }
      operation->pool = place.pool;
      operation->parts.push_back(place.part);
      hold(expert.gate_up, *matrices[i]);
      hold(expert.down, *matrices[i + 1]);
      if (!biases.empty()) {
        expert.gate_up_bias = biases[i];
        expert.down_bias = biases[i + 1];
      }
    }
    program_.add(std::move(operation));
  }

  // Run operations `first` up to `length` (all: 0). `spans`: (sequence, tokens seen, tokens). `hidden`: address of
  // float32 numbers for register 0, or 0. `adapters`: the number of each span's, or none at all. `shared_out`: ranks of
  // the context compute a part of the tokens each; else all of them, and keep their pages of the caches only. Returns
  // the status of the group's operation that failed, or OK.
  int run(const std::vector<std::tuple<std::int64_t, std::size_t, std::size_t>>& spans,
          const std::vector<std::int64_t>& tokens, const std::vector<std::size_t>& wanted, std::uintptr_t hidden,
          double timeout_seconds, std::size_t length, const std::vector<std::size_t>& adapters, std::size_t first,
          bool shared_out) {
    if (first > (length == 0 ? program_.length() : length)) throw std::invalid_argument("it ends before it begins");
    std::vector<SequenceSpan> given;
    std::size_t count = 0;
    if (!adapters.empty() && adapters.size() != spans.size()) throw std::invalid_argument("an adapter for each span");
    for (const auto& [sequence, seen, some] : spans) {
      if (seen != 0 && !machine_.cache.has(sequence)) throw std::invalid_argument("no such sequence is in the cache");
      given.push_back({sequence, seen, some, adapters.empty() ? 0 : adapters[given.size()]});
      count += some;
    }
    for (const std::size_t row : wanted) {
      if (row >= count) throw std::invalid_argument("a wanted row is not in the batch");
    }
    if (hidden == 0 && tokens.size() != count) throw std::invalid_argument("as many tokens as the spans say");
    if (shared_out && machine_.context == nullptr) throw std::invalid_argument("there is no other rank of a context");
    const nb::gil_scoped_release release;
    Step step{machine_, given, tokens, wanted, timeout_seconds, shared_out, 0, 0, 0, false, {}};
    try {
      program_.run(step, reinterpret_cast<const float*>(hidden), length == 0 ? program_.length() : length, first);
    } catch (const GroupEnded& ended) {
      return static_cast<int>(ended.status);
    }
    return static_cast<int>(Status::ok);
  }
  std::uintptr_t address(std::size_t reg) {
    return reinterpret_cast<std::uintptr_t>(machine_.registers.at(reg).numbers.data());
  }
  std::size_t length() const { return program_.length(); }
  void release(std::int64_t sequence) { machine_.cache.release(sequence); }
  void keep(std::int64_t sequence, std::size_t place, std::int64_t block) {
    machine_.cache.keep(sequence, place, block);
  }
  void adopt(std::int64_t sequence, const std::vector<std::int64_t>& blocks) { machine_.cache.adopt(sequence, blocks); }
  void drop(std::int64_t block) { machine_.cache.drop(block); }
  nb::object read_block(std::int64_t block) {
    const std::size_t size = machine_.cache.block_bytes();
    PyObject* const made = PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(size));
    if (made == nullptr) throw nb::python_error();
    nb::object found = nb::steal(made);
    machine_.cache.read(block, reinterpret_cast<std::uint8_t*>(PyBytes_AsString(made)));
    return found;
  }
  void write_block(std::int64_t block, const nb::bytes& data) {
    if (data.size() != machine_.cache.block_bytes()) throw std::invalid_argument("not as many bytes as a block has");
    machine_.cache.write(block, reinterpret_cast<const std::uint8_t*>(data.data()));
  }
  void open_block(std::int64_t block) { machine_.cache.open(block); }
  using PartGiven = std::tuple<std::size_t, std::size_t, std::size_t>;  // layer, first head, heads
  std::size_t part_bytes(const PartGiven& given) const { return machine_.cache.part_bytes(part(given)); }
  // `to` has room for as many bytes as `count` blocks have of the part.
  void copy_part(std::int64_t sequence, std::size_t place, std::size_t count, const PartGiven& given, Bytes to) {
    check_size(given, count, to.size());
    machine_.cache.copy_part(sequence, place, count, part(given), to.data());
  }
  // Also while another thread is inside of `run`.
  void put_part(const std::vector<std::int64_t>& blocks, const PartGiven& given, Bytes from) {
    check_size(given, blocks.size(), from.size());
    const std::size_t bytes = part_bytes(given);
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      machine_.cache.put_part(blocks[i], part(given), from.data() + i * bytes);
    }
  }
  std::size_t block_bytes() const { return machine_.cache.block_bytes(); }
  std::size_t bytes_per_token() const { return machine_.cache.bytes_per_token(); }

 private:
  static KvCache::Part part(const PartGiven& given) {
    return {std::get<0>(given), std::get<1>(given), std::get<2>(given)};
  }
  void check_size(const PartGiven& given, std::size_t blocks, std::size_t bytes) const {
    if (bytes != blocks * part_bytes(given)) throw std::invalid_argument("not as many bytes as the blocks' part has");
  }
  static const PyMatrix::Place& place_of(const PyMatrix& matrix) {
    if (matrix.place().pool == nullptr) throw std::invalid_argument("a matrix that is in memory");
    return matrix.place();
  }
  std::size_t own_rank() const { return static_cast<std::size_t>(machine_.group_rank); }
  // `to` stays where it is as long as the program.
  void hold(PackedMatrix& to, PyMatrix& matrix) {
    held_.push_back(nb::cast(&matrix));
    to = matrix.packed();
    const PyMatrix::Place& place = matrix.place();
    if (place.pool != nullptr) place.pool->bind(place.part, place.index, to);
  }
  void hold_all(std::vector<PackedMatrix>& to, const std::vector<PyMatrix*>& matrices) {
    to.resize(matrices.size());
    for (std::size_t i = 0; i < matrices.size(); ++i) hold(to[i], *matrices[i]);
  }

  Machine machine_;
  StepProgram program_;
  std::vector<nb::object> held_;
};

}  // namespace

void bind_programs(nb::module_& module) {
  nb::class_<PyProgram>(module, "Program")
      .def(nb::init<int, const std::vector<std::tuple<std::size_t, std::size_t, std::size_t>>&, int, int, bool,
                    std::uintptr_t, int, int, std::uintptr_t, std::size_t, std::size_t>(),
           "threads"_a, "layers"_a, "cached"_a, "wire"_a, "exact"_a, "group"_a, "group_size"_a, "group_rank"_a,
           "context"_a = 0, "context_size"_a = 1, "context_rank"_a = 0)
      .def("add_register", &PyProgram::add_register, "width"_a)
      .def("add_rotary", &PyProgram::add_rotary, "frequencies"_a, "factor"_a)
      .def("embed", &PyProgram::embed, "table"_a, "first"_a, "factor"_a, "shared"_a, "to"_a)
      .def("norm", &PyProgram::norm, "source"_a, "to"_a, "width"_a, "count"_a, "weight"_a, "bias"_a, "eps"_a, "mean"_a)
      .def("product", &PyProgram::product, "source"_a, "to"_a, "matrices"_a, "bias"_a)
      .def("adapt", &PyProgram::adapt, "source"_a, "to"_a, "adapters"_a)
      .def("head_product", &PyProgram::head_product, "source"_a, "to"_a, "source_stride"_a, "to_stride"_a, "kept"_a,
           "matrices"_a)
      .def("rotate", &PyProgram::rotate, "heads"_a, "count"_a, "width"_a, "table"_a, "interleaved"_a)
      .def("attend", &PyProgram::attend, "query"_a, "key"_a, "value"_a, "to"_a, "layer"_a, "heads"_a, "scale"_a,
           "softcap"_a, "window"_a, "sinks"_a)
      .def("gate", &PyProgram::gate, "gate"_a, "up"_a, "gated"_a, "to"_a, "width"_a, "kind"_a)
      .def("reduce", &PyProgram::reduce, "source"_a, "to"_a, "add"_a, "shared"_a, "factor"_a, "bias"_a)
      .def("reduce_scatter", &PyProgram::reduce_scatter, "register"_a)
      .def("all_gather", &PyProgram::all_gather, "register"_a, "exact"_a)
      .def("scale", &PyProgram::scale, "register"_a, "factor"_a, "softcap"_a)
      .def("select", &PyProgram::select, "source"_a, "to"_a)
      .def("gather", &PyProgram::gather, "source"_a, "to"_a, "widths"_a)
      .def("enter", &PyProgram::enter, "matrix"_a)
      .def("leave", &PyProgram::leave, "matrix"_a)
      .def("experts", &PyProgram::experts, "x"_a, "logits"_a, "to"_a, "total"_a, "chosen"_a, "scoring"_a, "normalize"_a,
           "factor"_a, "choice_bias"_a, "groups"_a, "chosen_groups"_a, "group_best"_a, "first"_a, "sharing"_a,
           "bounds"_a, "inner"_a, "kind"_a, "interleaved"_a, "matrices"_a, "biases"_a)
      .def("run", &PyProgram::run, "spans"_a, "tokens"_a, "wanted"_a, "hidden"_a, "timeout_seconds"_a, "length"_a,
           "adapters"_a, "first"_a = 0, "shared_out"_a = false)
      .def("address", &PyProgram::address, "register"_a)
      .def("release", &PyProgram::release, "sequence"_a)
      .def("keep", &PyProgram::keep, "sequence"_a, "place"_a, "block"_a)
      .def("adopt", &PyProgram::adopt, "sequence"_a, "blocks"_a)
      .def("drop", &PyProgram::drop, "block"_a)
      .def("read_block", &PyProgram::read_block, "block"_a)
      .def("write_block", &PyProgram::write_block, "block"_a, "data"_a)
      .def("open_block", &PyProgram::open_block, "block"_a)
      .def("part_bytes", &PyProgram::part_bytes, "part"_a)
      .def("copy_part", &PyProgram::copy_part, "sequence"_a, "place"_a, "count"_a, "part"_a, "to"_a)
      .def("put_part", &PyProgram::put_part, "blocks"_a, "part"_a, "data"_a)
      .def_prop_ro("block_bytes", &PyProgram::block_bytes)
      .def_prop_ro("length", &PyProgram::length)
      .def_prop_ro("bytes_per_token", &PyProgram::bytes_per_token);
}

}  // namespace ferrule
