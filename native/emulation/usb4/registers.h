// Registers of a USB4 host interface (USB4 specification, "Host Interface Adapter Layer"), and its descriptors.
#pragma once

#include <cstdint>

namespace ferrule::usb4 {

constexpr std::uint32_t kBarSize = 0x40000;
constexpr std::uint32_t kPage = 0x1000;
constexpr unsigned kVectors = 16;
constexpr unsigned kMostHops = 64;

// 16 bytes for each ring.
constexpr std::uint32_t kTxRings = 0x00000;
constexpr std::uint32_t kRxRings = 0x08000;
constexpr std::uint32_t kRingStride = 16;
constexpr std::uint32_t kRingBase = 0;
constexpr std::uint32_t kRingIndices = 8;  // Tx: ours, the driver's; Rx: the driver's, ours; 16 bits each
constexpr std::uint32_t kRingSize = 12;    // 16 bits; above them the largest frame (Rx), 0: 4096
// 32 bytes for each ring.
constexpr std::uint32_t kTxOptions = 0x19800;
constexpr std::uint32_t kRxOptions = 0x29800;
constexpr std::uint32_t kOptionsStride = 32;
constexpr std::uint32_t kOptionEnable = 1u << 31;
constexpr std::uint32_t kOptionRaw = 1u << 30;
constexpr std::uint32_t kOptionE2e = 1u << 28;
constexpr std::uint32_t kPdfMasks = 4;  // EOF's in the lower half, SOF's in the upper

// A bit for each ring: Tx, Rx, and, of the status, Rx without a descriptor.
constexpr std::uint32_t kStatus = 0x37800;
constexpr std::uint32_t kStatusClear = 0x37808;
constexpr std::uint32_t kMask = 0x38200;
constexpr std::uint32_t kMaskClear = 0x38208;
constexpr std::uint32_t kThrottling = 0x38c00;    // for each vector, in units of 256 ns
constexpr std::uint32_t kVectorChoice = 0x38c40;  // 4 bits for each ring's bit
constexpr std::uint32_t kCapabilities = 0x39640;
constexpr std::uint32_t kDmaMisc = 0x39864;
constexpr std::uint32_t kAutoClear = 1u << 2;

struct Descriptor {
  std::uint64_t address;
  std::uint32_t word;  // length:12, EOF:4, SOF:4, flags:12
  std::uint32_t time;
};
static_assert(sizeof(Descriptor) == 16);

constexpr std::uint32_t kFlagShift = 20;
constexpr std::uint32_t kFlagCrcError = 0x1;  // of a received frame
constexpr std::uint32_t kFlagCompleted = 0x2;
constexpr std::uint32_t kFlagOverrun = 0x4;  // of a received frame
constexpr std::uint32_t kFlagInterrupt = 0x8;

constexpr std::uint32_t kMostFrame = 4096;

}  // namespace ferrule::usb4
