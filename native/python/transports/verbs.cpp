#include "python/transports/verbs.h"

#include <nanobind/stl/string.h>

#include <array>

namespace nb = nanobind;
using namespace nb::literals;

namespace {

// Run a step of the C ABI without the interpreter's lock; its reason becomes an OSError.
template <class Step>
void checked(Step&& step) {
  std::array<char, 512> error{};
  ferrule_status status;
  {
    const nb::gil_scoped_release release;
    status = step(error.data(), error.size());
  }
  if (status == FERRULE_OK) return;
  PyErr_SetString(PyExc_OSError, error.data());
  throw nb::python_error();
}

void add_port(void* context, const ferrule_verbs_port* port) {
  const nb::gil_scoped_acquire gil;
  nb::dict fields;
  fields["device"] = port->device;
  fields["problem"] = port->problem == nullptr ? "" : port->problem;
  fields["port"] = port->port;
  fields["active"] = port->active != 0;
  fields["infiniband"] = port->infiniband != 0;
  fields["iwarp"] = port->iwarp != 0;
  fields["mtu"] = port->mtu;
  fields["lid"] = port->lid;
  fields["vendor"] = port->vendor;
  fields["max_qp"] = port->max_qp;
  fields["max_mr"] = port->max_mr;
  fields["max_qp_wr"] = port->max_qp_wr;
  nb::dict gids;
  for (const ferrule_verbs_gid* gid = port->gids; gid != port->gids + port->gid_count; ++gid) {
    gids[nb::int_(gid->index)] = nb::bytes(gid->raw, sizeof gid->raw);
  }
  fields["gids"] = gids;
  static_cast<nb::list*>(context)->append(fields);
}

nb::list ports() {
  nb::list all;
  checked([&](char* error, std::size_t size) { return ferrule_verbs_ports(add_port, &all, error, size); });
  return all;
}

}  // namespace

PyVerbsEndpoint::PyVerbsEndpoint(const std::string& device, int port, int gid_index, const std::string& type, int stream,
                                 const std::string& address, bool listens) {
  if (type != "RC" && type != "UC") throw nb::value_error("a queue pair is RC or UC");
  ferrule_verbs_options options{};
  options.device = device.c_str();
  options.port = port;
  options.gid_index = gid_index;
  options.type = type == "UC" ? FERRULE_VERBS_UC : FERRULE_VERBS_RC;
  options.stream = static_cast<ferrule_stream>(stream);
  options.address = address.empty() ? nullptr : address.c_str();
  options.listens = listens ? 1 : 0;
  checked([&](char* error, std::size_t size) { return ferrule_verbs_open(&options, &endpoint_, error, size); });
}

ferrule_verbs_endpoint* PyVerbsEndpoint::get() const {
  if (endpoint_ == nullptr) throw nb::value_error("the endpoint is closed, or a channel has it");
  return endpoint_;
}

nb::bytes PyVerbsEndpoint::local() const {
  std::array<std::uint8_t, FERRULE_VERBS_DESCRIPTION_BYTES> description{};
  ferrule_verbs_describe(get(), description.data());
  return nb::bytes(description.data(), description.size());
}

void PyVerbsEndpoint::join(const nb::bytes& other, double timeout) {
  if (other.size() != FERRULE_VERBS_DESCRIPTION_BYTES) throw nb::value_error("that describes no endpoint");
  ferrule_verbs_endpoint* const endpoint = get();
  const auto* const words = reinterpret_cast<const std::uint8_t*>(other.c_str());
  checked([&](char* error, std::size_t size) { return ferrule_verbs_join(endpoint, words, timeout, error, size); });
}

void PyVerbsEndpoint::prove(double timeout) {
  ferrule_verbs_endpoint* const endpoint = get();
  checked([&](char* error, std::size_t size) { return ferrule_verbs_prove(endpoint, timeout, error, size); });
}

void PyVerbsEndpoint::close() {
  ferrule_verbs_endpoint* const endpoint = release();
  const nb::gil_scoped_release unlocked;
  if (endpoint != nullptr) ferrule_verbs_close(endpoint);
}

void bind_verbs(nb::module_& module) {
  nb::class_<PyVerbsEndpoint>(module, "VerbsEndpoint")
      .def(nb::init<const std::string&, int, int, const std::string&, int, const std::string&, bool>(), "device"_a,
           "port"_a, "gid_index"_a, "type"_a, "stream"_a, "address"_a = "", "listens"_a = false)
      .def_prop_ro("local", &PyVerbsEndpoint::local)
      .def("join", &PyVerbsEndpoint::join, "other"_a, "timeout"_a)
      .def("prove", &PyVerbsEndpoint::prove, "timeout"_a)
      .def("close", &PyVerbsEndpoint::close);
  module.def("verbs_ports", &ports);
}
