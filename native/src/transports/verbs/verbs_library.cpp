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
  void* const handle = open_library(kName);
  VerbsLibrary all;
  const auto find = [handle](auto& function, const char* symbol) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(find_symbol(handle, symbol));
  };
  find(all.get_device_list, "ibv_get_device_list");
  find(all.free_device_list, "ibv_free_device_list");
  find(all.get_device_name, "ibv_get_device_name");
  find(all.open_device, "ibv_open_device");
  find(all.close_device, "ibv_close_device");
  find(all.query_device, "ibv_query_device");
  find(all.query_port, "ibv_query_port");
  find(all.query_gid, "ibv_query_gid");
  find(all.alloc_pd, "ibv_alloc_pd");
  find(all.dealloc_pd, "ibv_dealloc_pd");
  find(all.reg_mr, "ibv_reg_mr");
  find(all.dereg_mr, "ibv_dereg_mr");
  find(all.create_comp_channel, "ibv_create_comp_channel");
  find(all.destroy_comp_channel, "ibv_destroy_comp_channel");
  find(all.create_cq, "ibv_create_cq");
  find(all.destroy_cq, "ibv_destroy_cq");
  find(all.get_cq_event, "ibv_get_cq_event");
  find(all.ack_cq_events, "ibv_ack_cq_events");
  find(all.create_qp, "ibv_create_qp");
  find(all.modify_qp, "ibv_modify_qp");
  find(all.destroy_qp, "ibv_destroy_qp");
  find(all.wc_status_str, "ibv_wc_status_str");
  return all;
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

void* find_symbol(void* library, const char* symbol) {
  void* const found = ::dlsym(library, symbol);
  if (found == nullptr) throw std::runtime_error(std::string("the RDMA library has no ") + symbol);
  return found;
}

const VerbsLibrary& VerbsLibrary::get() {
  static const VerbsLibrary library = load();
  return library;
}

}  // namespace ferrule
