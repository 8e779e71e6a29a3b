// Words of the native core for Python.
#pragma once

#include <nanobind/nanobind.h>

#include <array>
#include <string>

namespace ferrule {

using ErrorText = std::array<char, 256>;

// What other ranks said may be cut in the middle of a character.
inline nanobind::object text_of(const char* text) {
  const auto length = static_cast<Py_ssize_t>(std::char_traits<char>::length(text));
  return nanobind::steal(PyUnicode_DecodeUTF8(text, length, "replace"));
}

}  // namespace ferrule
