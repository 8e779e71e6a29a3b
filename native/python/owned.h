// Holders of native objects for Python: they wait without the interpreter's lock, and know when a group took theirs
// over.
#pragma once

#include <nanobind/nanobind.h>

#include <chrono>
#include <memory>
#include <stdexcept>
#include <utility>

#include "transports/message.h"

namespace ferrule {

inline Clock::duration seconds(double value) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(value));
}

// Run `call` without the interpreter's lock; where it fails for a reason outside of this process, raise an OSError.
template <class Call>
auto without_lock(Call&& call) {
  try {
    const nanobind::gil_scoped_release release;
    return call();
  } catch (const std::invalid_argument&) {
    throw;
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_OSError, error.what());
    throw nanobind::python_error();
  }
}

// An object that Python holds until a group or a channel takes it over.
template <class Object>
class Owned {
 public:
  explicit Owned(std::unique_ptr<Object> object) : object_(std::move(object)) {}
  Owned(Owned&&) noexcept = default;
  Owned& operator=(Owned&&) = delete;
  ~Owned() { close(); }

  // Throws std::invalid_argument when it was taken over or closed.
  Object& get() const {
    if (object_ == nullptr) throw std::invalid_argument("it is closed, or something else has taken it over");
    return *object_;
  }
  explicit operator bool() const { return object_ != nullptr; }
  std::unique_ptr<Object> release() { return std::move(object_); }
  void close() {
    if (object_ == nullptr) return;
    const nanobind::gil_scoped_release unlocked;
    object_.reset();
  }

 private:
  std::unique_ptr<Object> object_;
};

}  // namespace ferrule
