#include "transports/verbs/verbs_library.h"

#include <dlfcn.h>

#include <stdexcept>
#include <string>

namespace ferrule {
namespace {

#ifdef __APPLE__
constexpr const char* kName = "librdma.dylib";
#else
constexpr const char* kName = "libibverbs.so.1";
#endif

VerbsLibrary load() {
#if defined(__APPLE__) && !defined(FERRULE_SYSTEM_VERBS)
  throw std::runtime_error("this Ferrule was built without RDMA: that takes the SDK of macOS 26.2 or newer");
#endif
  return {open_library(kName)};
}

}  // namespace

void* open_library(const char* name) {
  // Its name resolves to the copy that is loaded already, if there is one: two would not know each other's objects.
  void* const handle = ::dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* const why = ::dlerror();
    throw std::runtime_error(why == nullptr ? std::string("cannot open ") + name : why);
  }
  return handle;
}

void* look_up(void* library, const char* symbol) { return ::dlsym(library, symbol); }

void* find_symbol(void* library, const char* symbol) {
  void* const found = look_up(library, symbol);
  if (found == nullptr) throw std::runtime_error(std::string("the RDMA library has no ") + symbol);
  return found;
}

const VerbsLibrary& VerbsLibrary::get() {
  static const VerbsLibrary library = load();
  return library;
}

}  // namespace ferrule
