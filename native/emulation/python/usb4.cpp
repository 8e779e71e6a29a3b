#include "emulation/python/bindings.h"

#include <unistd.h>

#include <fcntl.h>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <span>
#include <system_error>
#include <type_traits>
#include <utility>
#include <vector>

#include "emulation/usb4/engine.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace ferrule {
namespace {

using usb4::Controller;
using usb4::Engine;

std::span<const std::byte> view(const nb::bytes& data) {
  return {reinterpret_cast<const std::byte*>(data.data()), data.size()};
}

nb::bytes read(Engine& engine, unsigned controller, std::uint32_t offset, std::uint32_t size) {
  if (size > usb4::kBarSize) throw nb::value_error("more than there are registers");
  std::vector<std::byte> data(size);
  engine.with(controller, [&](Controller& each) { each.read(offset, data); });
  return nb::bytes(data.data(), data.size());
}

void set_interrupt(Engine& engine, unsigned controller, unsigned vector, int fd) {
  const int own = fd < 0 ? -1 : ::fcntl(fd, F_DUPFD_CLOEXEC, 0);
  if (fd >= 0 && own < 0) throw std::system_error(errno, std::generic_category(), "the interrupt's event");
  if (own >= 0) ::fcntl(own, F_SETFL, ::fcntl(own, F_GETFL) | O_NONBLOCK);
  engine.with(controller, [&](Controller& each) { each.set_interrupt(vector, own); });
}

// A method of a controller, its memory or a wire as one of the engine, which takes the number of that first.
template <class Result, class Part, class... Arguments>
auto of_part(Result (Part::*method)(Arguments...)) {
  return [method](Engine& engine, unsigned number, Arguments... arguments) -> Result {
    const auto call = [&](Part& part) -> Result { return (part.*method)(arguments...); };
    if constexpr (std::is_same_v<Part, usb4::Wire>) {
      return engine.with_wire(number, call);
    } else if constexpr (std::is_same_v<Part, Controller>) {
      return engine.with(number, call);
    } else {
      return engine.with(number, [&](Controller& each) { return call(each.memory()); });
    }
  };
}

nb::object take_control(Engine& engine) {
  auto packet = engine.take_control();
  if (!packet) return nb::none();
  return nb::make_tuple(packet->controller, packet->kind, nb::bytes(packet->data.data(), packet->data.size()));
}

nb::dict controller_counters(Engine& engine, unsigned controller) {
  const usb4::ControllerCounters now = engine.with(controller, [](Controller& each) { return each.counters(); });
  nb::dict named;
  named["sent"] = now.sent;
  named["received"] = now.received;
  named["unrouted"] = now.unrouted;
  named["overflowed"] = now.overflowed;
  named["unframed"] = now.unframed;
  named["bad_addresses"] = now.bad_addresses;
  named["interrupts"] = now.interrupts;
  named["lost_interrupts"] = now.lost_interrupts;
  return named;
}

nb::dict wire_counters(Engine& engine, unsigned wire) {
  const usb4::WireCounters now = engine.with_wire(wire, [](usb4::Wire& each) { return each.counters(); });
  nb::dict named;
  named["frames"] = now.frames;
  named["bytes"] = now.bytes;
  named["delivered"] = now.delivered;
  named["dropped"] = now.dropped;
  named["corrupted"] = now.corrupted;
  named["duplicated"] = now.duplicated;
  named["reordered"] = now.reordered;
  named["muted"] = now.muted;
  named["cut"] = now.cut;
  return named;
}

}  // namespace

void bind_usb4(nb::module_& module) {
  nb::class_<Engine>(module, "Usb4Engine")
      .def(nb::init<>())
      .def("add_controller", &Engine::add_controller, "hops"_a)
      .def("add_wire", &Engine::add_wire, "seed"_a, "interface"_a)
      .def("registers",
           [](Engine& engine, unsigned each) {
             return engine.with(each, [](Controller& controller) { return controller.bar().fd(); });
           })
      .def("read", &read, "controller"_a, "offset"_a, "size"_a)
      .def(
          "write",
          [](Engine& engine, unsigned each, std::uint32_t offset, const nb::bytes& data) {
            engine.with(each, [&](Controller& controller) { controller.write(offset, view(data)); });
          },
          "controller"_a, "offset"_a, "data"_a)
      .def("map_memory", of_part(&usb4::GuestMemory::map), "controller"_a, "address"_a, "size"_a, "fd"_a, "offset"_a,
           "writable"_a)
      .def("unmap_memory", of_part(&usb4::GuestMemory::unmap), "controller"_a, "address"_a, "size"_a)
      .def("forget_memory", &Engine::forget_memory, "controller"_a)
      .def("set_interrupt", &set_interrupt, "controller"_a, "vector"_a, "fd"_a)
      .def("reset", &Engine::reset, "controller"_a)
      .def("stall", of_part(&Controller::stall), "controller"_a, "transmit"_a, "ring"_a, "on"_a)
      .def("lose_interrupts", of_part(&Controller::lose_interrupts), "controller"_a, "chance"_a)
      .def(
          "connect",
          [](Engine& engine, unsigned each, unsigned ring, unsigned wire, unsigned peer, unsigned peer_ring,
             unsigned hop) {
            engine.connect(each, ring, wire, {peer, peer_ring, hop});
          },
          "controller"_a, "ring"_a, "wire"_a, "peer"_a, "peer_ring"_a, "hop"_a)
      .def("disconnect", &Engine::disconnect, "controller"_a, "ring"_a)
      .def(
          "shape",
          [](Engine& engine, unsigned wire, double rate, double delay, double drop, double corrupt, double duplicate,
             double reorder, bool mute) {
            const usb4::WireShape shape{rate, static_cast<usb4::Time>(delay * 1e9), drop, corrupt, duplicate, reorder,
                                        mute};
            engine.with_wire(wire, [&](usb4::Wire& each) { each.shape(shape); });
          },
          "wire"_a, nb::kw_only(), "rate"_a, "delay"_a, "drop"_a, "corrupt"_a, "duplicate"_a, "reorder"_a, "mute"_a)
      .def("clear", of_part(&usb4::Wire::clear), "wire"_a)
      .def("wire_counters", &wire_counters, "wire"_a)
      .def("controller_counters", &controller_counters, "controller"_a)
      .def("control_event", &Engine::control_event)
      .def("take_control", &take_control)
      .def(
          "send_control",
          [](Engine& engine, unsigned each, unsigned kind, const nb::bytes& data) {
            const auto bytes = view(data);
            engine.send_control({each, kind, {bytes.begin(), bytes.end()}});
          },
          "controller"_a, "kind"_a, "data"_a)
      .def(
          "open_trace",
          [](Engine& engine, int fd, std::size_t most) {
            engine.with_trace([&](usb4::Trace& trace) { trace.open(fd, most); });
          },
          "fd"_a, "most"_a)
      .def("close_trace", [](Engine& engine) { engine.with_trace([](usb4::Trace& trace) { trace.close(); }); })
      .def(
          "trace_control",
          [](Engine& engine, std::uint32_t interface, unsigned kind, const nb::bytes& data, bool dropped) {
            const auto pdf = static_cast<std::uint8_t>(kind);
            const usb4::TraceHeader header{
                .flags = dropped ? usb4::kTraceDropped : std::uint16_t{0}, .sof = pdf, .eof = pdf};
            engine.with_trace([&](usb4::Trace& trace) { trace.add(interface, header, view(data)); });
          },
          "interface"_a, "kind"_a, "data"_a, "dropped"_a)
      .def("trace_lost",
           [](Engine& engine) { return engine.with_trace([](usb4::Trace& trace) { return trace.lost(); }); });
}

}  // namespace ferrule
