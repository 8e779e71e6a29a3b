#include "python/transports/verbs.h"

#include <nanobind/stl/string.h>

#include <cstring>

namespace nb = nanobind;
using namespace nb::literals;

namespace ferrule {
namespace {

nb::list ports() {
  nb::list all;
  for (const VerbsPort& port : without_lock([] { return verbs_ports(); })) {
    nb::dict fields;
    fields["device"] = port.device;
    fields["problem"] = port.problem;
    fields["port"] = port.port;
    fields["active"] = port.active;
    fields["infiniband"] = port.infiniband;
    fields["iwarp"] = port.iwarp;
    fields["mtu"] = port.mtu;
    fields["lid"] = port.lid;
    fields["vendor"] = port.vendor;
    fields["max_qp"] = port.max_qp;
    fields["max_mr"] = port.max_mr;
    fields["max_qp_wr"] = port.max_qp_wr;
    nb::dict gids;
    for (const VerbsGid& gid : port.gids) gids[nb::int_(gid.index)] = nb::bytes(gid.value.raw, sizeof gid.value.raw);
    fields["gids"] = gids;
    all.append(fields);
  }
  return all;
}

std::string problem() {
  try {
    VerbsLibrary::get();
    return "";
  } catch (const std::runtime_error& error) {
    return error.what();
  }
}

void open(PyVerbsEndpoint* self, const std::string& device, int port, int gid_index, const std::string& type,
          int stream, const std::string& address, bool listens) {
  if (type != "RC" && type != "UC") throw nb::value_error("a queue pair is RC or UC");
  const VerbsOptions options{
      device,  port,   gid_index, type == "UC" ? VerbsType::uc : VerbsType::rc, static_cast<Stream>(stream),
      address, listens};
  new (self) PyVerbsEndpoint(without_lock([&] { return std::make_unique<VerbsEndpoint>(options); }));
}

nb::bytes local(const PyVerbsEndpoint& endpoint) {
  const VerbsDescription& mine = endpoint.get().local();
  return nb::bytes(&mine, sizeof mine);
}

void join(const PyVerbsEndpoint& endpoint, const nb::bytes& other, double timeout) {
  VerbsDescription theirs;
  if (other.size() != sizeof theirs) throw nb::value_error("that describes no endpoint");
  std::memcpy(&theirs, other.c_str(), sizeof theirs);
  VerbsEndpoint& mine = endpoint.get();
  without_lock([&] { mine.join(theirs, Clock::now() + seconds(timeout)); });
}

void prove(const PyVerbsEndpoint& endpoint, double timeout) {
  VerbsEndpoint& mine = endpoint.get();
  without_lock([&] { mine.prove(Clock::now() + seconds(timeout)); });
}

}  // namespace

void bind_verbs(nb::module_& module) {
  nb::class_<PyVerbsEndpoint>(module, "VerbsEndpoint")
      .def("__init__", &open, "device"_a, "port"_a, "gid_index"_a, "type"_a, "stream"_a, "address"_a = "",
           "listens"_a = false)
      .def_prop_ro("local", &local)
      .def("join", &join, "other"_a, "timeout"_a)
      .def("prove", &prove, "timeout"_a)
      .def("close", &PyVerbsEndpoint::close);
  module.def("verbs_ports", &ports);
  module.def("verbs_problem", &problem);
}

}  // namespace ferrule
