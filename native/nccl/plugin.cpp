// The tables that NCCL and RCCL look for: versions 8 to 12 of their interface over the same functions.
#include <algorithm>
#include <cstring>
#include <mutex>
#include <optional>

#include "nccl/abi.h"
#include "nccl/identity.h"
#include "nccl/join/acceptor.h"
#include "nccl/join/attempt.h"
#include "nccl/log.h"

namespace ferrule::nccl {
namespace {

constexpr std::size_t kMaxBytes = std::size_t{1} << 30;  // sizes of done requests are ints
constexpr int kMaxComms = 4096;

// What this host offers: one device, over all of its cables, so that a comm stripes over them and survives any.
struct Offer {
  Settings settings;
  std::string pci;
  int speed = 0;

  static Offer find() {
    Offer found{Settings::read(), {}, 0};
    const std::vector<Interface> interfaces = usable_interfaces(found.settings);
    found.speed = found.settings.speed != 0 ? found.settings.speed : speed_of(interfaces);
    found.pci = pci_path(interfaces.front());
    std::string names;
    for (const Interface& one : interfaces) names += (names.empty() ? "" : " + ") + one.name;
    inform("rails over " + names + ", " + std::to_string(found.speed) + " Mbit/s" +
           (found.settings.key.empty() ? "; without FERRULE_KEY for this host only" : ""));
    return found;
  }
};

std::mutex offer_mutex;

// Found at the first init; it stays, as NCCL keeps pointers into it.
const Offer& offer() {
  static const Offer* known = nullptr;
  const std::scoped_lock lock(offer_mutex);
  if (known == nullptr) known = new Offer(Offer::find());
  return *known;
}

struct Listening {
  std::shared_ptr<Acceptor> acceptor;
  std::uint64_t listener;
  Clock::time_point since;
  Clock::duration patience;
};

void check_device(int device) {
  if (device != 0) throw Error(kInternalError, "there is no device " + std::to_string(device) + ", only 0");
}

Result init(Logger logger) {
  set_logger(logger);
  return guarded([] { (void)offer(); });
}

Result devices(int* count) {
  *count = 1;
  return kSuccess;
}

template <class Properties>
void fill_common(Properties& into) {
  static char name[] = "ferrule";
  const Offer& own = offer();
  into.name = name;
  into.pci_path = own.pci.empty() ? nullptr : const_cast<char*>(own.pci.c_str());
  into.guid = host_number(own.settings.host);
  into.pointers = kPointerHost;  // NCCL takes what is in a GPU's memory through the host's
  into.registers_globally = 0;
  into.speed = own.speed;
  into.port = 1;
  into.latency = 0;  // NCCL's own figure for networks
  into.max_comms = kMaxComms;
  into.max_receives = static_cast<int>(kMaxReceives);
  into.device_type = kDeviceHost;
  into.device_version = 0;
}

template <class Properties>
void fill(Properties& into) {
  fill_common(into);
  into.force_flush = 0;
  into.members = {};
  into.members.count = 1;
  into.max_point_to_point = kMaxBytes;
  into.max_collective = kMaxBytes;
}

void fill(PropertiesV8& into) { fill_common(into); }

void fill(PropertiesV11& into) {
  fill(into.common);
  into.max_multi_request = 1;
}

void fill(PropertiesV12& into) {
  fill(into.common);
  into.max_multi_request = 1;
  into.rail_id = into.plane_id = kNoId;
}

template <class Properties>
Result properties(int device, Properties* into) {
  return guarded([&] {
    check_device(device);
    fill(*into);
  });
}

Result listen(int device, void* handle, void** listener) {
  return guarded([&] {
    check_device(device);
    const Settings& settings = offer().settings;
    auto acceptor = Acceptor::own(settings);
    const Handle made = acceptor->open();
    std::memcpy(handle, &made, sizeof made);
    *listener = new Listening{std::move(acceptor), made.listener, Clock::now(), settings.timeout};
  });
}

Result connect(int device, void* handle, void** comm, void**) {
  return guarded([&] {
    check_device(device);
    *comm = nullptr;
    Handle asked;
    std::memcpy(&asked, handle, sizeof asked);
    *comm = Attempts::own().connect(offer().settings, asked).release();
    std::memcpy(handle, &asked, sizeof asked);
  });
}

Result accept(void* listener, void** comm, void**) {
  return guarded([&] {
    auto& listening = *static_cast<Listening*>(listener);
    *comm = listening.acceptor->fetch(listening.listener).release();
    if (*comm == nullptr && Clock::now() - listening.since > listening.patience) {
      throw Error(kRemoteError, "no peer has connected, for longer than FERRULE_TIMEOUT allows");
    }
  });
}

Result register_memory(void* comm, void* data, std::size_t size, int type, void** registration) {
  return guarded([&] {
    if (type != kPointerHost) throw Error(kInvalidUsage, "only memory of the host is sent, not a device's");
    *registration = static_cast<Comm*>(comm)->add_memory(data, size);
  });
}

Result register_dmabuf(void*, void*, std::size_t, int, std::uint64_t, int, void**) {
  return guarded([] { throw Error(kInvalidUsage, "only memory of the host is sent, not a device's"); });
}

Result unregister(void*, void* registration) {
  return guarded([&] {
    auto* const memory = static_cast<Comm::Memory*>(registration);
    memory->comm->remove_memory(memory);
  });
}

Result send(void* comm, void* data, std::size_t size, int tag, void*, void* /*profile*/, void** request) {
  return guarded([&] {
    *request = nullptr;
    *request = static_cast<SendComm*>(static_cast<Comm*>(comm))->send(data, size, tag);
  });
}

// `*request` may say that NCCL will not look at the result: it is told all the same.
template <class Size>
Result receive_of(void* comm, int count, void** data, const Size* sizes, const int* tags, void** request) {
  return guarded([&] {
    *request = nullptr;
    std::array<ReceiveComm::Place, kMaxReceives> places{};
    const auto wanted = static_cast<std::size_t>(std::max(0, count));
    for (std::size_t i = 0; i < std::min(wanted, places.size()); ++i) {
      places[i] = {data[i], static_cast<std::size_t>(sizes[i]), tags[i]};
    }
    if (wanted == 0 || wanted > places.size()) throw Error(kInternalError, "a group has 1 to 8 receives");
    *request = static_cast<ReceiveComm*>(static_cast<Comm*>(comm))->receive(std::span(places).first(wanted));
  });
}

Result receive(void* comm, int count, void** data, std::size_t* sizes, int* tags, void**, void**, void** request) {
  return receive_of(comm, count, data, sizes, tags, request);
}

// The processor itself wrote what was received: there is nothing to wait for.
Result flush(void*, int, void**, int*, void**, void** request) {
  *request = nullptr;
  return kSuccess;
}

Result test(void* request, int* done, int* sizes) {
  return guarded([&] {
    *done = 0;
    auto& one = *static_cast<Request*>(request);
    *done = one.comm->test(one, sizes) ? 1 : 0;
  });
}

Result close_comm(void* comm) {
  return guarded([&] { delete static_cast<Comm*>(comm); });
}

Result close_listen(void* listener) {
  return guarded([&] {
    const std::unique_ptr<Listening> gone(static_cast<Listening*>(listener));
    gone->acceptor->close(gone->listener);
  });
}

// For version 8 and 9, and those with a context: the same without, or with, what is not looked at.
Result send_v8(void* comm, void* data, int size, int tag, void* registration, void** request) {
  return send(comm, data, static_cast<std::size_t>(size), tag, registration, nullptr, request);
}
Result receive_v8(void* comm, int count, void** data, int* sizes, int* tags, void**, void** request) {
  return receive_of(comm, count, data, sizes, tags, request);
}
Result send_v9(void* comm, void* data, std::size_t size, int tag, void* registration, void** request) {
  return send(comm, data, size, tag, registration, nullptr, request);
}
Result receive_v9(void* comm, int count, void** data, std::size_t* sizes, int* tags, void**, void** request) {
  return receive_of(comm, count, data, sizes, tags, request);
}
Result init_v10(Logger logger, void*) { return init(logger); }
Result connect_v10(int device, void*, void* handle, void** comm, void** on_device) {
  return connect(device, handle, comm, on_device);
}
Result init_v11(void** context, std::uint64_t, void*, Logger logger, void*) {
  static char none;
  *context = &none;
  return init(logger);
}
Result listen_v11(void*, int device, void* handle, void** listener) { return listen(device, handle, listener); }
Result connect_v11(void*, int device, void* handle, void** comm, void** on_device) {
  return connect(device, handle, comm, on_device);
}
Result finalize(void*) { return kSuccess; }

constexpr const char* kName = "Ferrule";

// The device is virtual by itself, of all cables: NCCL need not make others.
template <class Properties, int devices_per_nic>
constexpr NetV11On<Properties, devices_per_nic> with_context() {
  return {kName,           init_v11,    devices,    properties<Properties>,
          listen_v11,      connect_v11, accept,     register_memory,
          register_dmabuf, unregister,  send,       receive,
          flush,           test,        close_comm, close_comm,
          close_listen,    nullptr,     nullptr,    nullptr,
          finalize,        nullptr};
}

}  // namespace
}  // namespace ferrule::nccl

using namespace ferrule::nccl;

extern "C" {
#define FERRULE_EXPORTED [[gnu::visibility("default")]] extern
FERRULE_EXPORTED const NetV8 ncclNetPlugin_v8;
FERRULE_EXPORTED const NetV9 ncclNetPlugin_v9;
FERRULE_EXPORTED const NetV10 ncclNetPlugin_v10;
FERRULE_EXPORTED const NetV11 ncclNetPlugin_v11;
FERRULE_EXPORTED const NetV12 ncclNetPlugin_v12;

const NetV8 ncclNetPlugin_v8{kName,           init,       devices,    properties<PropertiesV8>,
                             listen,          connect,    accept,     register_memory,
                             register_dmabuf, unregister, send_v8,    receive_v8,
                             flush,           test,       close_comm, close_comm,
                             close_listen,    nullptr,    nullptr};
const NetV9 ncclNetPlugin_v9{kName,           init,       devices,    properties<PropertiesV9>,
                             listen,          connect,    accept,     register_memory,
                             register_dmabuf, unregister, send_v9,    receive_v9,
                             flush,           test,       close_comm, close_comm,
                             close_listen,    nullptr,    nullptr,    nullptr};
const NetV10 ncclNetPlugin_v10{kName,           init_v10,    devices,    properties<PropertiesV9>,
                               listen,          connect_v10, accept,     register_memory,
                               register_dmabuf, unregister,  send,       receive,
                               flush,           test,        close_comm, close_comm,
                               close_listen,    nullptr,     nullptr,    nullptr};
const NetV11 ncclNetPlugin_v11 = with_context<PropertiesV11, 4>();
const NetV12 ncclNetPlugin_v12 = with_context<PropertiesV12, 8>();
}
