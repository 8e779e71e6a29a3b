// The binary interface between NCCL or RCCL and a network plugin, versions 8 to 12: layouts and numbers only.
//
// NCCL looks for the newest of `ncclNetPlugin_v12` down to `v8` that it knows. Pointers to types that we never look
// into are void*. tests/native/nccl/abi.cpp compares all of it with NCCL's own headers where there are some.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ferrule::nccl {

enum Result : int {
  kSuccess = 0,
  kSystemError = 2,
  kInternalError = 3,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kRemoteError = 6,
};

enum LogLevel : int { kLogWarn = 2, kLogInfo = 3 };
constexpr unsigned long kLogInit = 1;
constexpr unsigned long kLogNet = 16;
using Logger = void (*)(LogLevel level, unsigned long subsystems, const char* file, int line, const char* format, ...);

constexpr std::size_t kHandleBytes = 128;
constexpr int kMaxRequests = 32;  // per comm; 8 before version 7. A sender has as many for each grouped receive
constexpr int kPointerHost = 1;
constexpr int kPointerDmabuf = 4;
constexpr int kDeviceHost = 0;  // no part of the plugin runs on the GPU
constexpr std::int16_t kNoId = -1;

struct PropertiesV8 {
  char* name;
  char* pci_path;
  std::uint64_t guid;
  int pointers;
  int registers_globally;
  int speed;  // Mbit/s
  int port;
  float latency;  // us
  int max_comms;
  int max_receives;
  int device_type;
  int device_version;
};

template <int devices>
struct VirtualDevice {
  int count;
  int members[devices];
};

template <int devices_per_nic>
struct PropertiesOn {
  char* name;
  char* pci_path;
  std::uint64_t guid;
  int pointers;
  int registers_globally;
  int force_flush;
  int speed;
  int port;
  float latency;
  int max_comms;
  int max_receives;
  int device_type;
  int device_version;
  VirtualDevice<devices_per_nic> members;
  std::size_t max_point_to_point;
  std::size_t max_collective;
};
using PropertiesV9 = PropertiesOn<4>;  // also version 10

struct PropertiesV11 {
  PropertiesOn<4> common;
  int max_multi_request;
};

struct PropertiesV12 {
  PropertiesOn<8> common;
  int max_multi_request;
  std::int16_t rail_id;
  std::int16_t plane_id;
};

// What all versions have in common, from regMr to deregMr and from iflush to irecvConsumed.
using Register = Result (*)(void* comm, void* data, std::size_t size, int type, void** registration);
using RegisterDmabuf = Result (*)(void* comm, void* data, std::size_t size, int type, std::uint64_t offset, int fd,
                                  void** registration);
using Unregister = Result (*)(void* comm, void* registration);
using Accept = Result (*)(void* listener, void** comm, void** device);
using Flush = Result (*)(void* comm, int count, void** data, int* sizes, void** registrations, void** request);
using Test = Result (*)(void* request, int* done, int* sizes);
using Close = Result (*)(void* comm);
using DeviceRegistration = Result (*)(void* comm, void* registration, void** device);
using Consumed = Result (*)(void* comm, int count, void* request);

struct NetV8 {
  const char* name;
  Result (*init)(Logger logger);
  Result (*devices)(int* count);
  Result (*properties)(int device, PropertiesV8* into);
  Result (*listen)(int device, void* handle, void** listener);
  Result (*connect)(int device, void* handle, void** comm, void** on_device);
  Accept accept;
  Register register_memory;
  RegisterDmabuf register_dmabuf;
  Unregister unregister;
  Result (*send)(void* comm, void* data, int size, int tag, void* registration, void** request);
  Result (*receive)(void* comm, int count, void** data, int* sizes, int* tags, void** registrations, void** request);
  Flush flush;
  Test test;
  Close close_send;
  Close close_receive;
  Close close_listen;
  DeviceRegistration device_registration;
  Consumed consumed;
};

struct NetV9 {
  const char* name;
  Result (*init)(Logger logger);
  Result (*devices)(int* count);
  Result (*properties)(int device, PropertiesV9* into);
  Result (*listen)(int device, void* handle, void** listener);
  Result (*connect)(int device, void* handle, void** comm, void** on_device);
  Accept accept;
  Register register_memory;
  RegisterDmabuf register_dmabuf;
  Unregister unregister;
  Result (*send)(void* comm, void* data, std::size_t size, int tag, void* registration, void** request);
  Result (*receive)(void* comm, int count, void** data, std::size_t* sizes, int* tags, void** registrations,
                    void** request);
  Flush flush;
  Test test;
  Close close_send;
  Close close_receive;
  Close close_listen;
  DeviceRegistration device_registration;
  Consumed consumed;
  Result (*make_virtual)(int* device, VirtualDevice<4>* members);
};

// Since version 10 sends and receives carry handles for a profiler.
using SendV10 = Result (*)(void* comm, void* data, std::size_t size, int tag, void* registration, void* profile,
                           void** request);
using ReceiveV10 = Result (*)(void* comm, int count, void** data, std::size_t* sizes, int* tags, void** registrations,
                              void** profiles, void** request);

struct NetV10 {
  const char* name;
  Result (*init)(Logger logger, void* profiler);
  Result (*devices)(int* count);
  Result (*properties)(int device, PropertiesV9* into);
  Result (*listen)(int device, void* handle, void** listener);
  Result (*connect)(int device, void* config, void* handle, void** comm, void** on_device);
  Accept accept;
  Register register_memory;
  RegisterDmabuf register_dmabuf;
  Unregister unregister;
  SendV10 send;
  ReceiveV10 receive;
  Flush flush;
  Test test;
  Close close_send;
  Close close_receive;
  Close close_listen;
  DeviceRegistration device_registration;
  Consumed consumed;
  Result (*make_virtual)(int* device, VirtualDevice<4>* members);
};

// Since version 11 init is called for each communicator of NCCL, which gets a context.
template <class Properties, int devices_per_nic>
struct NetV11On {
  const char* name;
  Result (*init)(void** context, std::uint64_t communicator, void* config, Logger logger, void* profiler);
  Result (*devices)(int* count);
  Result (*properties)(int device, Properties* into);
  Result (*listen)(void* context, int device, void* handle, void** listener);
  Result (*connect)(void* context, int device, void* handle, void** comm, void** on_device);
  Accept accept;
  Register register_memory;
  RegisterDmabuf register_dmabuf;
  Unregister unregister;
  SendV10 send;
  ReceiveV10 receive;
  Flush flush;
  Test test;
  Close close_send;
  Close close_receive;
  Close close_listen;
  DeviceRegistration device_registration;
  Consumed consumed;
  Result (*make_virtual)(int* device, VirtualDevice<devices_per_nic>* members);
  Result (*finalize)(void* context);
  Result (*set_attributes)(void* context, void* attributes);
};
using NetV11 = NetV11On<PropertiesV11, 4>;
using NetV12 = NetV11On<PropertiesV12, 8>;

}  // namespace ferrule::nccl
