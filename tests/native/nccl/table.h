// The plugin as NCCL sees it: opened by its path, its table of one version behind the calls of the newest.
#pragma once

#include <dlfcn.h>

#include <array>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <functional>
#include <mutex>
#include <string>

#include "nccl/abi.h"
#include "testing.h"

namespace nccl_test {

using namespace ferrule::nccl;

// What NCCL would show, kept for checks; warnings also go to stderr with NCCL_DEBUG.
class Log {
 public:
  static void take(LogLevel level, unsigned long, const char*, int, const char* format, ...) {
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    (void)std::vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (std::getenv("NCCL_DEBUG") != nullptr) std::fprintf(stderr, "%s\n", text);
    const std::scoped_lock lock(mutex());
    if (level == kLogWarn) all() += std::string(text) + "\n";
  }
  static std::string warnings() {
    const std::scoped_lock lock(mutex());
    return all();
  }
  static bool warned(const std::string& part) { return warnings().find(part) != std::string::npos; }

 private:
  static std::mutex& mutex() {
    static std::mutex one;
    return one;
  }
  static std::string& all() {
    static std::string text;
    return text;
  }
};

struct Properties {
  std::string name;
  int pointers;
  int speed;
  int max_receives;
  int max_comms;
};

// Every function of the newest table; what a version lacks is put in or left out here.
class Net {
 public:
  Net(const char* path, int version) : version_(version) {
    library_ = ::dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library_ == nullptr) testing::fail(__FILE__, __LINE__, ::dlerror());
    switch (version) {
      case 8: {
        const auto* const net = table<NetV8>();
        take_common(net);
        take_plain<PropertiesV8>(net);
        init = [net] { return net->init(Log::take); };
        send = [net](void* comm, void* data, std::size_t size, int tag, void* memory, void** request) {
          return net->send(comm, data, static_cast<int>(size), tag, memory, request);
        };
        receive = [net](void* comm, int count, void** data, std::size_t* sizes, int* tags, void** memory,
                        void** request) {
          std::array<int, 8> whole{};
          for (int i = 0; i < count && i < 8; ++i) whole[static_cast<std::size_t>(i)] = static_cast<int>(sizes[i]);
          return net->receive(comm, count, data, whole.data(), tags, memory, request);
        };
        break;
      }
      case 9: {
        const auto* const net = table<NetV9>();
        take_common(net);
        take_plain<PropertiesV9>(net);
        init = [net] { return net->init(Log::take); };
        send = net->send;
        receive = net->receive;
        break;
      }
      case 10: {
        const auto* const net = table<NetV10>();
        take_common(net);
        take_profiled(net);
        init = [net] { return net->init(Log::take, nullptr); };
        listen = net->listen;
        properties = [net](Properties& into) { return read<PropertiesV9>(net, into); };
        connect = [net](int device, void* handle, void** comm) {
          int config = -1;
          return net->connect(device, &config, handle, comm, nullptr);
        };
        break;
      }
      case 11:
        take_newest<PropertiesV11>(table<NetV11>());
        break;
      default:
        take_newest<PropertiesV12>(table<NetV12>());
    }
  }
  ~Net() { ::dlclose(library_); }
  Net(const Net&) = delete;
  Net& operator=(const Net&) = delete;

  int version() const { return version_; }
  bool exports(const char* symbol) const { return ::dlsym(library_, symbol) != nullptr; }

  std::function<Result()> init;
  std::function<Result(int*)> devices;
  std::function<Result(Properties&)> properties;
  std::function<Result(int, void*, void**)> listen;
  std::function<Result(int, void*, void**)> connect;
  std::function<Result(void*, void**)> accept;
  Register register_memory = nullptr;
  Unregister unregister = nullptr;
  std::function<Result(void*, void*, std::size_t, int, void*, void**)> send;
  std::function<Result(void*, int, void**, std::size_t*, int*, void**, void**)> receive;
  Flush flush = nullptr;
  Test test = nullptr;
  Close close_send = nullptr;
  Close close_receive = nullptr;
  Close close_listen = nullptr;
  std::function<Result()> finalize = [] { return kSuccess; };

 private:
  template <class Table>
  const Table* table() const {
    const std::string name = "ncclNetPlugin_v" + std::to_string(version_);
    const auto* const found = static_cast<const Table*>(::dlsym(library_, name.c_str()));
    CHECK(found != nullptr && std::string(found->name) == "Ferrule");
    return found;
  }
  template <class Table>
  void take_common(const Table* net) {
    devices = net->devices;
    accept = [net](void* listener, void** comm) { return net->accept(listener, comm, nullptr); };
    register_memory = net->register_memory;
    unregister = net->unregister;
    flush = net->flush;
    test = net->test;
    close_send = net->close_send;
    close_receive = net->close_receive;
    close_listen = net->close_listen;
  }
  template <class Raw, class Table>
  void take_plain(const Table* net) {
    listen = net->listen;
    properties = [net](Properties& into) { return read<Raw>(net, into); };
    connect = [net](int device, void* handle, void** comm) { return net->connect(device, handle, comm, nullptr); };
  }
  template <class Table>
  void take_profiled(const Table* net) {
    send = [net](void* comm, void* data, std::size_t size, int tag, void* memory, void** request) {
      return net->send(comm, data, size, tag, memory, nullptr, request);
    };
    receive = [net](void* comm, int count, void** data, std::size_t* sizes, int* tags, void** memory, void** request) {
      return net->receive(comm, count, data, sizes, tags, memory, nullptr, request);
    };
  }
  template <class Raw, class Table>
  void take_newest(const Table* net) {
    take_common(net);
    take_profiled(net);
    properties = [net](Properties& into) { return read<Raw>(net, into); };
    init = [this, net] {
      int config = -1;
      return net->init(&context_, 4711, &config, Log::take, nullptr);
    };
    listen = [this, net](int device, void* handle, void** listener) {
      return net->listen(context_, device, handle, listener);
    };
    connect = [this, net](int device, void* handle, void** comm) {
      return net->connect(context_, device, handle, comm, nullptr);
    };
    finalize = [this, net] { return net->finalize(context_); };
  }
  static const PropertiesV8& common(const PropertiesV8& raw) { return raw; }
  static const PropertiesV9& common(const PropertiesV9& raw) { return raw; }
  template <class Raw>
  static const auto& common(const Raw& raw) {
    return raw.common;
  }
  template <class Raw, class Table>
  static Result read(const Table* net, Properties& into) {
    Raw raw;
    std::memset(&raw, 0xee, sizeof raw);  // it fills all
    const Result result = net->properties(0, &raw);
    if (result != kSuccess) return result;
    const auto& found = common(raw);
    CHECK(found.device_type == kDeviceHost && found.registers_globally == 0 && found.port == 1);
    if constexpr (requires { found.members; }) {
      CHECK(found.members.count == 1 && found.members.members[0] == 0 && found.force_flush == 0);
      CHECK(found.max_point_to_point >= (256u << 20) && found.max_collective >= (256u << 20));
    }
    if constexpr (requires { raw.max_multi_request; }) CHECK(raw.max_multi_request == 1);
    if constexpr (requires { raw.rail_id; }) CHECK(raw.rail_id == kNoId && raw.plane_id == kNoId);
    into = {found.name, found.pointers, found.speed, found.max_receives, found.max_comms};
    return kSuccess;
  }

  const int version_;
  void* library_;
  void* context_ = nullptr;
};

}  // namespace nccl_test
