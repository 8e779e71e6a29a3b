// The module ferrule._emulation: the lab's emulated cables and USB4 controllers, apart from what carries real data.
#include "emulation/python/bindings.h"

NB_MODULE(_emulation, module) {
  module.doc() = "Emulated cables and USB4 controllers. Use ferrule.lab.";
  ferrule::bind_shaper(module);
  ferrule::bind_usb4(module);
}
