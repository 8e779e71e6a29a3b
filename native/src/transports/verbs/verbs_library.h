// libibverbs (Linux) or librdma (macOS), opened at run time: a machine without it lacks this transport and nothing
// else.
#pragma once

#include <cstddef>
#include <cstdint>

#include "transports/verbs/verbs_abi.h"

namespace ferrule {

// Open a shared library for good, and find what it exports; both throw std::runtime_error.
void* open_library(const char* name);
void* find_symbol(void* library, const char* symbol);
// nullptr where it does not.
void* look_up(void* library, const char* symbol);

// A function that a library exports; it is called like one.
template <class Signature>
class Symbol {
 public:
  Symbol(void* library, const char* name) : function_(reinterpret_cast<Signature*>(find_symbol(library, name))) {}
  operator Signature*() const { return function_; }

 private:
  Signature* function_;
};

// The functions that libibverbs exports; posting, polling and arming need no library.
struct VerbsLibrary {
  void* const handle;
  Symbol<ibv_device**(int*)> get_device_list{handle, "ibv_get_device_list"};
  Symbol<void(ibv_device**)> free_device_list{handle, "ibv_free_device_list"};
  Symbol<const char*(ibv_device*)> get_device_name{handle, "ibv_get_device_name"};
  Symbol<ibv_context*(ibv_device*)> open_device{handle, "ibv_open_device"};
  Symbol<int(ibv_context*)> close_device{handle, "ibv_close_device"};
  Symbol<int(ibv_context*, ibv_device_attr*)> query_device{handle, "ibv_query_device"};
  Symbol<int(ibv_context*, std::uint8_t, ibv_port_attr*)> query_port{handle, "ibv_query_port"};
  Symbol<int(ibv_context*, std::uint8_t, int, ibv_gid*)> query_gid{handle, "ibv_query_gid"};
  Symbol<ibv_pd*(ibv_context*)> alloc_pd{handle, "ibv_alloc_pd"};
  Symbol<int(ibv_pd*)> dealloc_pd{handle, "ibv_dealloc_pd"};
  Symbol<ibv_mr*(ibv_pd*, void*, std::size_t, int)> reg_mr{handle, "ibv_reg_mr"};
  Symbol<int(ibv_mr*)> dereg_mr{handle, "ibv_dereg_mr"};
  Symbol<ibv_comp_channel*(ibv_context*)> create_comp_channel{handle, "ibv_create_comp_channel"};
  Symbol<int(ibv_comp_channel*)> destroy_comp_channel{handle, "ibv_destroy_comp_channel"};
  Symbol<ibv_cq*(ibv_context*, int, void*, ibv_comp_channel*, int)> create_cq{handle, "ibv_create_cq"};
  Symbol<int(ibv_cq*)> destroy_cq{handle, "ibv_destroy_cq"};
  Symbol<int(ibv_comp_channel*, ibv_cq**, void**)> get_cq_event{handle, "ibv_get_cq_event"};
  Symbol<void(ibv_cq*, unsigned)> ack_cq_events{handle, "ibv_ack_cq_events"};
  Symbol<ibv_qp*(ibv_pd*, ibv_qp_init_attr*)> create_qp{handle, "ibv_create_qp"};
  Symbol<int(ibv_qp*, ibv_qp_attr*, int)> modify_qp{handle, "ibv_modify_qp"};
  Symbol<int(ibv_qp*)> destroy_qp{handle, "ibv_destroy_qp"};
  Symbol<const char*(ibv_wc_status)> wc_status_str{handle, "ibv_wc_status_str"};

  // Since rdma-core 34, on Linux; nullptr before. Arguments: offset into the dma-buf, length, address for work
  // requests, descriptor of the dma-buf, access.
  using RegisterDmabuf = ibv_mr*(ibv_pd*, std::uint64_t, std::size_t, std::uint64_t, int, int);
  RegisterDmabuf* const reg_dmabuf_mr = reinterpret_cast<RegisterDmabuf*>(look_up(handle, "ibv_reg_dmabuf_mr"));

  // Throws std::runtime_error where there is none.
  static const VerbsLibrary& get();
};

}  // namespace ferrule
