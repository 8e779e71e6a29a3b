#include "python/transports/channels.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "python/text.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace ferrule {
namespace {

const std::uint8_t* checked_token(const nb::bytes& token) {
  if (token.size() != FERRULE_TOKEN_BYTES) throw nb::value_error("a segment's token has 16 bytes");
  return reinterpret_cast<const std::uint8_t*>(token.c_str());
}

template <class Make>
PySegment made_by(Make&& make) {
  ferrule_segment* segment = nullptr;
  ErrorText error{};
  if (make(&segment, error.data(), error.size()) != FERRULE_OK) {
    PyErr_SetString(PyExc_OSError, error.data());
    throw nb::python_error();
  }
  return PySegment(segment);
}

}  // namespace

PySegment PySegment::create(const nb::bytes& token, int ranks) {
  const std::uint8_t* const words = checked_token(token);
  return made_by([&](ferrule_segment** out, char* error, std::size_t size) {
    return ferrule_segment_create(words, ranks, out, error, size);
  });
}

PySegment PySegment::open(const std::string& place, const nb::bytes& token, int ranks) {
  const std::uint8_t* const words = checked_token(token);
  return made_by([&](ferrule_segment** out, char* error, std::size_t size) {
    return ferrule_segment_open(place.c_str(), words, ranks, out, error, size);
  });
}

PyChannel PyChannel::tcp(int rank, int peer, int fd, std::uint64_t epoch) {
  const ferrule_ends ends{rank, peer, fd, epoch};
  return PyChannel(ferrule_channel_tcp(&ends));
}

PyChannel PyChannel::shm(int rank, int peer, int fd, std::uint64_t epoch, PySegment& segment, int stream, int mine,
                         int theirs) {
  const ferrule_ends ends{rank, peer, fd, epoch};
  return PyChannel(ferrule_channel_shm(&ends, segment.get(), static_cast<ferrule_stream>(stream), mine, theirs));
}

PyChannel PyChannel::verbs(int rank, int peer, int fd, std::uint64_t epoch, PyVerbsEndpoint& endpoint) {
  const ferrule_ends ends{rank, peer, fd, epoch};
  return PyChannel(ferrule_channel_verbs(&ends, endpoint.release()));
}

PyChannel PyChannel::rails(int rank, int peer, std::uint64_t epoch, const std::vector<int>& fds, int best,
                           double stall_seconds) {
  const ferrule_ends ends{rank, peer, -1, epoch};
  ferrule_channel* const channel = ferrule_channel_rails(&ends, fds.data(), fds.size(), best, stall_seconds);
  if (channel == nullptr) throw nb::value_error("best is one of the rails, and stall_seconds is positive");
  return PyChannel(channel);
}

void bind_channels(nb::module_& module) {
  nb::class_<PySegment>(module, "Segment")
      .def_static("create", &PySegment::create, "token"_a, "ranks"_a)
      .def_static("open", &PySegment::open, "place"_a, "token"_a, "ranks"_a)
      .def_prop_ro("place", &PySegment::place)
      .def("hide", &PySegment::hide)
      .def("close", &PySegment::close);

  nb::class_<PyChannel>(module, "Channel")
      .def_static("tcp", &PyChannel::tcp, "rank"_a, "peer"_a, "fd"_a, "epoch"_a)
      .def_static("shm", &PyChannel::shm, "rank"_a, "peer"_a, "fd"_a, "epoch"_a, "segment"_a, "stream"_a, "mine"_a,
                  "theirs"_a)
      .def_static("verbs", &PyChannel::verbs, "rank"_a, "peer"_a, "fd"_a, "epoch"_a, "endpoint"_a)
      .def_static("rails", &PyChannel::rails, "rank"_a, "peer"_a, "epoch"_a, "fds"_a, "best"_a, "stall_seconds"_a)
      .def_prop_ro("transport", &PyChannel::transport);
}

}  // namespace ferrule
