#include "python/transports/channels.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "python/transports/verbs.h"
#include "transports/shm/shm_channel.h"
#include "transports/tcp/tcp_channel.h"
#include "transports/verbs/verbs_channel.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace ferrule {
namespace {

const std::uint8_t* checked_token(const nb::bytes& token) {
  if (token.size() != kTokenBytes) throw nb::value_error("a segment's token has 16 bytes");
  return reinterpret_cast<const std::uint8_t*>(token.c_str());
}

PySegment create(const nb::bytes& token, int ranks) {
  const std::uint8_t* const bytes = checked_token(token);
  return PySegment(without_lock([&] { return Segment::create(bytes, ranks); }));
}

PySegment open(const std::string& place, const nb::bytes& token, int ranks) {
  const std::uint8_t* const bytes = checked_token(token);
  return PySegment(without_lock([&] { return Segment::open(place, bytes, ranks); }));
}

PyChannel shm(int rank, int peer, int fd, std::uint64_t epoch, const PySegment& segment, int stream, int mine,
              int theirs) {
  if (stream < 0 || stream >= kStreams) throw nb::value_error("there is no such stream");
  return PyChannel(std::make_unique<ShmChannel>(Ends{rank, peer, fd, epoch}, segment.get(), static_cast<Stream>(stream),
                                                mine, theirs));
}

PyChannel verbs(int rank, int peer, int fd, std::uint64_t epoch, PyVerbsEndpoint& endpoint) {
  VerbsEndpoint& ready = endpoint.get();
  PyChannel channel(std::make_unique<VerbsChannel>(Ends{rank, peer, fd, epoch}, ready.take_pipe(), ready.path()));
  endpoint.close();
  return channel;
}

PyChannel tcp(int rank, int peer, const std::vector<int>& fds, std::uint64_t epoch, int best) {
  if (best < 0 || static_cast<std::size_t>(best) >= fds.size()) throw nb::value_error("best is one of the rails");
  return PyChannel(std::make_unique<TcpChannel>(Ends{rank, peer, -1, epoch}, fds, best));
}

}  // namespace

void bind_channels(nb::module_& module) {
  nb::class_<PySegment>(module, "Segment")
      .def_static("create", &create, "token"_a, "ranks"_a)
      .def_static("open", &open, "place"_a, "token"_a, "ranks"_a)
      .def_prop_ro("place", [](const PySegment& segment) { return segment ? segment.get().place() : std::string(); })
      .def("hide",
           [](const PySegment& segment) {
             if (segment) segment.get().hide();
           })
      .def("close", &PySegment::close);

  nb::class_<PyChannel>(module, "Channel")
      .def_static("tcp", &tcp, "rank"_a, "peer"_a, "fds"_a, "epoch"_a, "best"_a = 0)
      .def_static("shm", &shm, "rank"_a, "peer"_a, "fd"_a, "epoch"_a, "segment"_a, "stream"_a, "mine"_a, "theirs"_a)
      .def_static("verbs", &verbs, "rank"_a, "peer"_a, "fd"_a, "epoch"_a, "endpoint"_a)
      .def_prop_ro("transport",
                   [](const PyChannel& channel) { return std::string(channel ? channel.get().transport() : ""); });
}

}  // namespace ferrule
