#include "compute/memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <mutex>
#include <new>

namespace ferrule {
namespace {

constexpr std::size_t kLargePage = std::size_t{2} << 20;
constexpr std::size_t kShared = std::size_t{64} << 20;  // bytes of pages that several parts share
constexpr std::size_t kAligned = 64;

std::size_t rounded_up(std::size_t bytes, std::size_t to) { return (bytes + to - 1) / to * to; }

struct Pages {
  std::mutex lock;
  std::weak_ptr<PageMemory> current;
  std::size_t used = 0;
};

Pages& pages() {
  static Pages one;
  return one;
}

}  // namespace

PageMemory::PageMemory(std::size_t bytes) : bytes_(bytes) {
  if (bytes == 0) return;
  const std::size_t room = bytes + (bytes < kLargePage ? 0 : kLargePage);
  void* const at = ::mmap(nullptr, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) throw std::bad_alloc();
  data_ = static_cast<std::uint8_t*>(at);
  if (bytes < kLargePage) return;
  const auto place = reinterpret_cast<std::uintptr_t>(at);
  const std::size_t before = rounded_up(place, kLargePage) - place;
  const std::size_t end = rounded_up(before + bytes, static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)));
  if (before > 0) ::munmap(data_, before);
  if (end < room) ::munmap(data_ + end, room - end);
  data_ += before;
#ifdef MADV_HUGEPAGE
  ::madvise(data_, bytes, MADV_HUGEPAGE);
#endif
}

PageMemory::~PageMemory() {
  if (data_ != nullptr) ::munmap(data_, bytes_);
}

SharedMemory::SharedMemory(std::size_t bytes) {
  if (bytes == 0) return;
  if (bytes > kShared / 2) {
    pages_ = std::make_shared<PageMemory>(bytes);
    data_ = pages_->data();
    return;
  }
  Pages& shared = pages();
  const std::lock_guard lock(shared.lock);
  pages_ = shared.current.lock();
  if (pages_ == nullptr || shared.used + bytes > kShared) {
    pages_ = std::make_shared<PageMemory>(kShared);
    shared.current = pages_;
    shared.used = 0;
  }
  data_ = pages_->data() + shared.used;
  shared.used = rounded_up(shared.used + bytes, kAligned);
}

}  // namespace ferrule
