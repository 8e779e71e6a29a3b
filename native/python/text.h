// Words of the native core for Python.
#pragma once

#include <nanobind/nanobind.h>

#include <string>

namespace ferrule {

// Text of other ranks, which may be cut in the middle of a character.
inline nanobind::object text_of(const std::string& text) {
  return nanobind::steal(PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace"));
}

}  // namespace ferrule
