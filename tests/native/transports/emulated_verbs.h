// What a test asks of the emulated libibverbs (emulated_verbs.cpp), whose one device, emu0, is in this process.
#pragma once

#include <atomic>

#define EMULATED_VERBS extern "C" __attribute__((visibility("default")))

struct EmulatedVerbs {
  std::atomic<int> refuse_dmabuf{0};    // with that errno
  std::atomic<int> most_dmabufs{1000};  // at a time
  std::atomic<int> dmabufs{0};          // that are registered
  std::atomic<int> asked{0};            // registrations of dma-bufs, also those that were refused
  std::atomic<int> sends{0};            // messages that have arrived
  std::atomic<int> writes{0};           // into a peer's memory
  std::atomic<bool> hold{false};        // what is posted leaves with emulated_release()
};

EMULATED_VERBS EmulatedVerbs* emulated_verbs();
EMULATED_VERBS void emulated_release();
