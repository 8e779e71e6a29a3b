#include "emulation/usb4/bar.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

namespace ferrule::usb4 {

Bar::Bar() {
  fd_ = ::memfd_create("ferrule-usb4-registers", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd_ < 0) throw std::system_error(errno, std::generic_category(), "memfd_create");
  void* const data = ::ftruncate(fd_, kBarSize) == 0
                         ? ::mmap(nullptr, kBarSize, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0)
                         : MAP_FAILED;
  if (data == MAP_FAILED) {
    const int error = errno;
    ::close(fd_);
    throw std::system_error(error, std::generic_category(), "the registers' memory");
  }
  ::fcntl(fd_, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW);  // the other process cannot shrink it under us
  data_ = static_cast<std::byte*>(data);
}

Bar::~Bar() {
  ::munmap(data_, kBarSize);
  ::close(fd_);
}

}  // namespace ferrule::usb4
