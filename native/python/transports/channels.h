// Shared-memory segments and channels for Python.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "ferrule/ferrule.h"
#include "python/transports/verbs.h"

namespace ferrule {

// Owns a segment until a group takes it over.
class PySegment {
 public:
  static PySegment create(const nanobind::bytes& token, int ranks);
  static PySegment open(const std::string& place, const nanobind::bytes& token, int ranks);
  explicit PySegment(ferrule_segment* segment) : segment_(segment) {}
  PySegment(PySegment&& other) noexcept : segment_(other.release()) {}
  PySegment& operator=(PySegment&&) = delete;
  ~PySegment() { close(); }

  std::string place() const { return segment_ == nullptr ? "" : ferrule_segment_place(segment_); }
  void hide() {
    if (segment_ != nullptr) ferrule_segment_hide(segment_);
  }
  void close() { ferrule_segment_destroy(release()); }
  ferrule_segment* get() const { return segment_; }
  ferrule_segment* release() { return std::exchange(segment_, nullptr); }

 private:
  ferrule_segment* segment_;
};

// Owns a channel until a group takes it over.
class PyChannel {
 public:
  explicit PyChannel(ferrule_channel* channel) : channel_(channel) {}
  PyChannel(PyChannel&& other) noexcept : channel_(other.release()) {}
  PyChannel& operator=(PyChannel&&) = delete;
  ~PyChannel() {
    if (channel_ != nullptr) ferrule_channel_destroy(channel_);
  }

  static PyChannel tcp(int rank, int peer, int fd, std::uint64_t epoch);
  static PyChannel shm(int rank, int peer, int fd, std::uint64_t epoch, PySegment& segment, int stream, int mine,
                       int theirs);
  static PyChannel verbs(int rank, int peer, int fd, std::uint64_t epoch, PyVerbsEndpoint& endpoint);
  static PyChannel rails(int rank, int peer, std::uint64_t epoch, const std::vector<int>& fds, int best,
                         double stall_seconds);
  std::string transport() const { return channel_ == nullptr ? "" : ferrule_channel_transport(channel_); }
  ferrule_channel* get() const { return channel_; }
  ferrule_channel* release() { return std::exchange(channel_, nullptr); }

 private:
  ferrule_channel* channel_;
};

void bind_channels(nanobind::module_& module);

}  // namespace ferrule
